"""The codec in plain PyTorch, on any device: the same bits as the compiled kernels, some 20 to 100 times slower."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dlplacer.data_parallel.ternary.layout import CODES_PER_WORD, words_for
from dlplacer.data_parallel.ternary.random_keys import DRAW_BITS, FIRST, SECOND, SPREAD

_TINY = 2.0**-64
_CACHED = 1 << 15  # Elements worked on at a time on a CPU: ten ops pass over them, and memory is ten times slower.


class TorchKernels:
    """Float32 gradients on any device; see `dlplacer.data_parallel.ternary.kernels.TernaryKernels`."""

    name = "torch"

    def measure(self, flat: torch.Tensor, table: NDArray[np.int64], clip: float) -> torch.Tensor:
        found = torch.zeros(len(table), 2, device=flat.device)
        for tensor, (start, numel, _) in enumerate(table.tolist()):
            values = flat[start : start + numel]
            variance, mean = torch.var_mean(values.double(), correction=0)
            deviation = variance.sqrt()
            largest = values.abs().amax()
            loose = (deviation == 0) | (mean.abs() > deviation)
            limit = torch.where(loose, torch.inf, clip * deviation).float()
            finite = torch.isfinite(largest)
            found[tensor, 0] = torch.where(finite, limit, torch.inf)
            found[tensor, 1] = torch.where(finite, torch.minimum(limit, largest), torch.inf)
        return found

    def encode(
        self,
        flat: torch.Tensor,
        table: NDArray[np.int64],
        limits: torch.Tensor,
        scalers: torch.Tensor,
        keys: NDArray[np.uint32],
        words: torch.Tensor,
    ) -> None:
        for tensor, (start, numel, first) in enumerate(table.tolist()):
            scaler, count = scalers[tensor], words_for(numel)
            up = torch.where(scaler < _TINY, 1 / _TINY, 1.0).to(scaler)
            unit, limit = scaler * up * 2.0**-DRAW_BITS, limits[tensor]
            packed = words[first : first + count].zero_()
            for place, base, length in _pieces(numel, flat):
                values = flat[start + base : start + base + length]
                draws = _draws(base, length, int(keys[tensor, 0]), int(keys[tensor, 1]), flat.device)
                kept = draws * unit < torch.minimum(values.abs(), limit) * up
                lane = base - place * count
                packed[lane : lane + length] |= (kept.int() << (values < 0).int()) << 2 * place

    def decode(self, rows: torch.Tensor, scalers: torch.Tensor, table: NDArray[np.int64], mean: torch.Tensor) -> None:
        share = torch.tensor(1 / len(rows), dtype=torch.float32, device=rows.device)
        for tensor, (start, numel, first) in enumerate(table.tolist()):
            for place, base, length in _pieces(numel, mean):
                total, lane = mean[start + base : start + base + length].zero_(), base - place * words_for(numel)
                for rank, row in enumerate(rows):
                    codes = row[first + lane : first + lane + length] >> 2 * place
                    total += scalers[rank, tensor] * ((codes & 1) - (codes >> 1 & 1))
                total *= share

    def add(self, rows: torch.Tensor, planes: torch.Tensor) -> None:
        places = torch.arange(CODES_PER_WORD, dtype=torch.int32, device=rows.device).unsqueeze(1) * 2
        sums = torch.full((CODES_PER_WORD, rows.shape[1]), len(rows), dtype=torch.int32, device=rows.device)
        for row in rows:
            sums += (row >> places & 1) - (row >> places + 1 & 1)
        bits = torch.arange(32, dtype=torch.int32, device=rows.device).unsqueeze(1)
        for plane, words in enumerate(planes):
            words.copy_(((sums.view(32, -1) >> plane & 1) << bits).sum(0, dtype=torch.int32))

    def spread(
        self,
        planes: torch.Tensor,
        ranks: int,
        scalers: torch.Tensor,
        table: NDArray[np.int64],
        mean: torch.Tensor,
    ) -> None:
        bits = torch.arange(32, dtype=torch.int32, device=planes.device).unsqueeze(1)
        sums = torch.zeros(len(planes), 32, planes.shape[2], dtype=torch.int32, device=planes.device)
        for plane in range(planes.shape[1]):
            sums |= (planes[:, plane].unsqueeze(1) >> bits & 1) << plane
        by_place = sums.view(len(planes), CODES_PER_WORD, -1).transpose(0, 1).reshape(CODES_PER_WORD, -1) - ranks
        share = torch.tensor(1 / ranks, dtype=torch.float32, device=planes.device)
        for tensor, (start, numel, first) in enumerate(table.tolist()):
            found = by_place[:, first : first + words_for(numel)].reshape(-1)[:numel]
            mean[start : start + numel] = scalers[tensor] * found * share


def _pieces(numel: int, flat: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """(place in the words, first element, length) of runs of a tensor whose codes have the same place."""
    count = words_for(numel)
    most = _CACHED if flat.device.type == "cpu" else count
    for place in range(CODES_PER_WORD):
        end = min((place + 1) * count, numel)
        for base in range(place * count, end, most):
            yield place, base, min(most, end - base)


def _draws(first: int, count: int, key_0: int, key_1: int, device: torch.device) -> torch.Tensor:
    """So many elements of the stream of a key from the first: float32 in 0 … 2^24 − 1."""
    # PyTorch has no arithmetic on uint32; int32 wraps in the same way, and after a shift the sign's copies are cut off.
    value = torch.arange(first, first + count, dtype=torch.int64, device=device).int()
    value = value * _signed(SPREAD) + _signed(key_0)
    value = _folded(value, 16) * _signed(FIRST) ^ _signed(key_1)
    value = _folded(_folded(value, 15) * _signed(SECOND), 16)
    return (value >> 32 - DRAW_BITS & (1 << DRAW_BITS) - 1).float()


def _folded(value: torch.Tensor, bits: int) -> torch.Tensor:
    return value ^ (value >> bits & (1 << 32 - bits) - 1)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
