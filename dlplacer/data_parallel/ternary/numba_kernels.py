"""The codec on a CPU core, compiled by numba and kept in its cache: no compiler is needed on the machine.

Element i of a tensor of w words stands in word i mod w, at bits 2 (i ÷ w): so 16 runs of consecutive elements fill
consecutive words, and every loop below works on vectors. All release the interpreter lock.
"""

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from dlplacer.data_parallel.ternary.numba_intrinsics import code, draw
from dlplacer.data_parallel.ternary.random_keys import DRAW_BITS

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LANES = 512  # Words worked on at a time: they and 16 runs of gradients stay in the first-level cache.
_BLOCK = 2048  # Elements summed at a time: read twice, the second time from that cache.
_INFINITE_BITS = 0x7F800000
_TINY = 2.0**-64
"""Below this, scaler and gradient are scaled by 2^64 before they are compared: a draw times the scaler would be 0."""


def _compiled(reordered: bool = False) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A kernel in machine code, with the arithmetic that is written, so that all implementations give the same bits.

    ``reordered`` sums come out in vectors, as one lane after another would not; NaN and infinity are never assumed
    away, as they must reach the scaler.
    """
    options = partial(njit, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz"} if reordered else False)

    def compiled(kernel: Callable[_P, _T]) -> Callable[_P, _T]:
        try:
            return cast("Callable[_P, _T]", options(cache=True)(kernel))
        except RuntimeError:  # No folder on this machine can hold the cache.
            return cast("Callable[_P, _T]", options()(kernel))

    return compiled


@_compiled(reordered=True)
def _measure(flat: NDArray[np.float32], table: NDArray[np.int64], clip: float, found: NDArray[np.float32]) -> None:
    bits = flat.view(np.int32)
    for tensor in range(table.shape[0]):
        start, numel = table[tensor, 0], table[tensor, 1]
        total, squares, largest = 0.0, 0.0, np.int32(0)
        for block in range(start, start + numel, _BLOCK):
            stop = min(block + _BLOCK, start + numel)
            values, patterns = flat[block:stop], bits[block:stop]
            block_total, block_squares, block_largest = 0.0, 0.0, np.int32(0)
            for index in range(stop - block):
                value = np.float64(values[index])
                block_total += value
                block_squares += value * value
            for index in range(stop - block):
                # Magnitudes of floats are ordered as their bits are, infinity and NaN above all.
                block_largest = max(block_largest, np.int32(patterns[index] & np.int32(0x7FFFFFFF)))
            total += block_total
            squares += block_squares
            largest = max(largest, block_largest)
        if largest >= _INFINITE_BITS:
            found[tensor, 0] = found[tensor, 1] = np.inf
            continue
        magnitude = np.array([largest], dtype=np.int32).view(np.float32)[0]
        mean = total / numel
        deviation = np.sqrt(max(squares / numel - mean * mean, 0.0))
        limit = np.float32(np.inf) if deviation == 0 or abs(mean) > deviation else np.float32(clip * deviation)
        found[tensor, 0] = limit
        found[tensor, 1] = min(limit, magnitude)


@_compiled()
def _encode(
    flat: NDArray[np.float32],
    table: NDArray[np.int64],
    limits: NDArray[np.float32],
    scalers: NDArray[np.float32],
    keys: NDArray[np.uint32],
    words: NDArray[np.uint32],
) -> None:
    held = np.empty(_LANES, np.uint32)
    for tensor in range(table.shape[0]):
        start, numel, first = table[tensor, 0], table[tensor, 1], table[tensor, 2]
        limit, key_0, key_1 = limits[tensor], keys[tensor, 0], keys[tensor, 1]
        up = np.float32(1 / _TINY) if scalers[tensor] < np.float32(_TINY) else np.float32(1)
        unit = np.float32(scalers[tensor] * up * np.float32(2.0**-DRAW_BITS))
        count = (numel + 15) // 16
        for begin in range(0, count, _LANES):
            lanes = min(_LANES, count - begin)
            held[:lanes] = np.uint32(0)
            for place in range(16):
                base = place * count + begin
                length = min(lanes, numel - base)
                if length <= 0:
                    break
                shift, values = np.uint32(2 * place), flat[start + base : start + base + length]
                for lane in range(length):
                    value = values[lane]
                    kept = draw(base + lane, key_0, key_1) * unit < min(abs(value), limit) * up
                    held[lane] |= code(kept, value < 0, shift)
            words[first + begin : first + begin + lanes] = held[:lanes]


@_compiled()
def _decode(
    rows: NDArray[np.uint32], scalers: NDArray[np.float32], table: NDArray[np.int64], out: NDArray[np.float32]
) -> None:
    ranks = rows.shape[0]
    share = np.float32(1 / ranks)
    for tensor in range(table.shape[0]):
        start, numel, first = table[tensor, 0], table[tensor, 1], table[tensor, 2]
        count = (numel + 15) // 16
        for begin in range(0, count, _LANES):
            for place in range(16):
                base = place * count + begin
                length = min(min(_LANES, count - begin), numel - base)
                if length <= 0:
                    break
                shift, mean = np.uint32(2 * place), out[start + base : start + base + length]
                mean[:] = np.float32(0)
                for rank in range(ranks):
                    scaler = scalers[rank, tensor]
                    words = rows[rank, first + begin : first + begin + length]
                    for lane in range(length):
                        bits = np.int32(np.uint32(words[lane] >> shift) & np.uint32(3))
                        mean[lane] += scaler * np.float32(np.int32(bits & 1) - np.int32(bits >> 1))
                for lane in range(length):
                    mean[lane] *= share


@_compiled()
def _add(rows: NDArray[np.uint32], planes: NDArray[np.uint32]) -> None:
    ranks, half = rows.shape[0], rows.shape[1] // 2
    sums = np.empty(_LANES, np.uint32)
    for begin in range(0, half, _LANES):
        lanes = min(_LANES, half - begin)
        planes[:, begin : begin + lanes] = np.uint32(0)
        for bit in range(32):
            first, shift = (bit & 1) * half + begin, np.uint32(bit & 30)
            sums[:lanes] = np.uint32(ranks)
            for rank in range(ranks):
                words = rows[rank, first : first + lanes]
                for lane in range(lanes):
                    bits = np.uint32(words[lane] >> shift)
                    sums[lane] += np.uint32(np.uint32(bits & np.uint32(1)) - np.uint32(np.uint32(bits >> 1) & 1))
            for plane in range(planes.shape[0]):
                held = planes[plane, begin : begin + lanes]
                for lane in range(lanes):
                    held[lane] |= np.uint32(np.uint32(np.uint32(sums[lane] >> plane) & np.uint32(1)) << np.uint32(bit))


@_compiled()
def _spread(
    planes: NDArray[np.uint32],
    ranks: int,
    scalers: NDArray[np.float32],
    table: NDArray[np.int64],
    out: NDArray[np.float32],
) -> None:
    bits, half = planes.shape[1], planes.shape[2]
    share = np.float32(1 / ranks)
    sums = np.empty(_LANES, np.uint32)
    for tensor in range(table.shape[0]):
        start, numel, first = table[tensor, 0], table[tensor, 1], table[tensor, 2]
        count = (numel + 15) // 16
        for place in range(16):
            element, end = place * count, min((place + 1) * count, numel)
            while element < end:
                word = first + element - place * count
                part, lane_0 = word // half, word % half
                length = min(min(_LANES, half - lane_0), end - element)
                shift = np.uint32(2 * place + part % 2)
                sums[:length] = np.uint32(0)
                for plane in range(bits):
                    words = planes[part // 2, plane, lane_0 : lane_0 + length]
                    for lane in range(length):
                        sums[lane] |= np.uint32(np.uint32(np.uint32(words[lane] >> shift) & 1) << np.uint32(plane))
                mean = out[start + element : start + element + length]
                for lane in range(length):
                    mean[lane] = scalers[tensor] * np.float32(np.int32(sums[lane]) - np.int32(ranks)) * share
                element += length


class NumbaKernels:
    """Float32 gradients on the CPU; see `dlplacer.data_parallel.ternary.kernels.TernaryKernels`."""

    name = "numba"

    def measure(self, flat: torch.Tensor, table: NDArray[np.int64], clip: float) -> torch.Tensor:
        found = np.zeros((len(table), 2), dtype=np.float32)
        _measure(flat.numpy(), table, clip, found)
        return torch.from_numpy(found)

    def encode(
        self,
        flat: torch.Tensor,
        table: NDArray[np.int64],
        limits: torch.Tensor,
        scalers: torch.Tensor,
        keys: NDArray[np.uint32],
        words: torch.Tensor,
    ) -> None:
        _encode(flat.numpy(), table, limits.numpy(), scalers.numpy(), keys, words.numpy().view(np.uint32))

    def decode(self, rows: torch.Tensor, scalers: torch.Tensor, table: NDArray[np.int64], mean: torch.Tensor) -> None:
        _decode(rows.numpy().view(np.uint32), scalers.numpy(), table, mean.numpy())

    def add(self, rows: torch.Tensor, planes: torch.Tensor) -> None:
        _add(rows.numpy().view(np.uint32), planes.numpy().view(np.uint32))

    def spread(
        self,
        planes: torch.Tensor,
        ranks: int,
        scalers: torch.Tensor,
        table: NDArray[np.int64],
        mean: torch.Tensor,
    ) -> None:
        _spread(planes.numpy().view(np.uint32), ranks, scalers.numpy(), table, mean.numpy())
