"""The codec in plain PyTorch, on any device: random codes (Wen et al. 2017), and small integers as planes of bits.

Planes hold blocks of 2,048 integers. Element i of a block is bit i ÷ 64 of word i mod 64 in every plane, so that all
loops over words are vectorised.

Random numbers come from a counter, the element's index, by two rounds of multiplication and shift. The second half of
the key enters between the rounds, so that streams of different keys are not shifts of each other.
"""

import numpy as np
import torch
from numpy.typing import NDArray

NAME = "torch"
LANES, BLOCK = 64, 2048
SPREAD, FIRST, SECOND = 0x9E3779B9, 0x7FEB352D, 0x846CA68B
"""Multipliers: 2^32 ÷ the golden ratio, and both of lowbias32, the integer hash with the least known bias."""
DRAW_BITS = 24
"""Bits of a random number, which float32 holds exactly."""


def draw(
    values: torch.Tensor, limit: torch.Tensor, scaler: torch.Tensor, key_0: int, key_1: int, codes: torch.Tensor
) -> None:
    """Fill `codes` (int8): an element's sign with probability min(|g|, limit) ÷ scaler, else 0 (eq. 1–3).

    Parameters
    ----------
    limit, scaler
        Tensors of one element, so that the host does not wait for a GPU.
    """
    # PyTorch has no arithmetic on uint32. int32 wraps in the same way; shifts mask off the copies of the sign.
    number = torch.arange(len(values), dtype=torch.int64, device=values.device).int()
    number = number * _signed(SPREAD) + _signed(key_0)
    number = _folded(number, 16) * _signed(FIRST) ^ _signed(key_1)
    number = _folded(_folded(number, 15) * _signed(SECOND), 16)
    number = number >> 32 - DRAW_BITS & (1 << DRAW_BITS) - 1
    kept = number.float() * (scaler * 2.0**-DRAW_BITS) < torch.minimum(values.abs(), limit)
    codes.copy_(kept * values.sign())


def pack(values: torch.Tensor, offset: int, planes: torch.Tensor) -> None:
    """Fill `planes` (int32, [blocks, bits, 64]) with `values` + `offset`, whole numbers of at least 0."""
    numbers = values.view(len(planes), 32, LANES).int() + offset
    bits = torch.arange(32, dtype=torch.int32, device=values.device).view(32, 1)
    for plane in range(planes.shape[1]):
        planes[:, plane] = ((numbers >> plane & 1) << bits).sum(1, dtype=torch.int32)


def decode(
    rows: torch.Tensor,
    offset: int,
    table: NDArray[np.int64],
    factors: torch.Tensor,
    share: float,
    out: torch.Tensor,
) -> None:
    """Fill the coded parts of `out` with the sum over rows of factor · (number − offset), times `share`.

    Parameters
    ----------
    rows
        Planes of every rank, int32, [ranks, blocks, bits, 64].
    table
        (start in `out`, elements, start among the numbers) of every tensor.
    factors
        float32, [ranks, tensors]. An infinite factor makes its tensor undefined.
    """
    bits = torch.arange(32, dtype=torch.int32, device=rows.device).view(32, 1)
    for rank, planes in enumerate(rows):
        numbers = torch.zeros(len(planes), 32, LANES, dtype=torch.int32, device=rows.device)
        for plane in range(planes.shape[1]):
            numbers |= (planes[:, plane].unsqueeze(1) >> bits & 1) << plane
        flat = (numbers - offset).view(-1)
        for tensor, (start, numel, first) in enumerate(table.tolist()):
            part, product = out[start : start + numel], factors[rank, tensor] * flat[first : first + numel]
            part.copy_(product if rank == 0 else part + product)
            if rank == len(rows) - 1:
                part *= torch.tensor(share, dtype=torch.float32, device=rows.device)


def _folded(number: torch.Tensor, bits: int) -> torch.Tensor:
    return number ^ (number >> bits & (1 << 32 - bits) - 1)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
