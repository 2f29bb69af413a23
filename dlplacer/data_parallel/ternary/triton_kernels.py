"""The codec on GPUs that Triton compiles for: encoding and decoding fused; sums as in plain PyTorch.

Nothing waits for the device: limits, scalers and keys are read where they are used.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from dlplacer.data_parallel.ternary.layout import words_for
from dlplacer.data_parallel.ternary.random_keys import DRAW_BITS, FIRST, SECOND, SPREAD
from dlplacer.data_parallel.ternary.torch_kernels import TorchKernels

_WORDS = 256
"""Words that one program makes: 16 runs of 256 gradients, each a coalesced read."""

_SPREAD, _FIRST, _SECOND = tl.constexpr(SPREAD), tl.constexpr(FIRST), tl.constexpr(SECOND)
_DROPPED, _UNIT = tl.constexpr(32 - DRAW_BITS), tl.constexpr(2.0**-DRAW_BITS)
_TINY, _UP = tl.constexpr(2.0**-64), tl.constexpr(2.0**64)


@triton.jit  # type: ignore[untyped-decorator]
def _encode(values, limits, scalers, keys, words, tensor, numel, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    limit, scaler = tl.load(limits + tensor), tl.load(scalers + tensor)
    # Keys are words of int32, as PyTorch has no arithmetic on unsigned ones.
    key_0 = tl.load(keys + 2 * tensor).to(tl.uint32, bitcast=True)
    key_1 = tl.load(keys + 2 * tensor + 1).to(tl.uint32, bitcast=True)
    up = tl.where(scaler < _TINY, _UP, 1.0)
    unit = scaler * up * _UNIT
    packed = tl.zeros((block,), tl.uint32)
    for place in range(16):
        index = place * count + lanes
        inside = (lanes < count) & (index < numel)
        value = tl.load(values + index, mask=inside, other=0.0)
        draw = index.to(tl.uint32) * tl.full((), _SPREAD, tl.uint32) + key_0
        draw = ((draw ^ (draw >> 16)) * tl.full((), _FIRST, tl.uint32)) ^ key_1
        draw = (draw ^ (draw >> 15)) * tl.full((), _SECOND, tl.uint32)
        draw = (draw ^ (draw >> 16)) >> _DROPPED
        kept = inside & (draw.to(tl.float32) * unit < tl.minimum(tl.abs(value), limit) * up)
        code = tl.where(kept, tl.where(value < 0, 2, 1), 0).to(tl.uint32)
        packed = packed | (code << (2 * place))
    tl.store(words + lanes, packed.to(tl.int32, bitcast=True), mask=lanes < count)


@triton.jit  # type: ignore[untyped-decorator]
def _decode(rows, scalers, mean, tensor, tensors, ranks, row_words, numel, count, share, block: tl.constexpr):  # type: ignore[no-untyped-def]
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    place = tl.program_id(1)
    index = place * count + lanes
    inside = (lanes < count) & (index < numel)
    total = tl.zeros((block,), tl.float32)
    for rank in range(ranks):
        word = tl.load(rows + lanes, mask=inside, other=0)
        rows += row_words
        code = word >> (2 * place)
        sign = (code & 1) - ((code >> 1) & 1)
        total += tl.load(scalers + rank * tensors + tensor) * sign.to(tl.float32)
    tl.store(mean + index, total * share, mask=inside)


class TritonKernels(TorchKernels):
    """Float32 gradients on GPUs; see `dlplacer.data_parallel.ternary.kernels.TernaryKernels`."""

    name = "triton"

    def encode(
        self,
        flat: torch.Tensor,
        table: NDArray[np.int64],
        limits: torch.Tensor,
        scalers: torch.Tensor,
        keys: NDArray[np.uint32],
        words: torch.Tensor,
    ) -> None:
        on_device = torch.from_numpy(keys.view(np.int32)).to(flat.device, non_blocking=True)
        for tensor, (start, numel, first) in enumerate(table.tolist()):
            count = words_for(numel)
            _encode[(triton.cdiv(count, _WORDS),)](
                flat[start:], limits, scalers, on_device, words[first:], tensor, numel, count, block=_WORDS
            )

    def decode(self, rows: torch.Tensor, scalers: torch.Tensor, table: NDArray[np.int64], mean: torch.Tensor) -> None:
        ranks, tensors = scalers.shape
        share = float(np.float32(1 / ranks))
        for tensor, (start, numel, first) in enumerate(table.tolist()):
            count = words_for(numel)
            _decode[(triton.cdiv(count, _WORDS), 16)](
                rows[:, first:],
                scalers,
                mean[start:],
                tensor,
                tensors,
                ranks,
                rows.shape[1],
                numel,
                count,
                share,
                block=_WORDS,
            )
