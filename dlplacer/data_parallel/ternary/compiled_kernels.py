"""The codec on a CPU core, compiled by numba: the same bits as `torch_kernels`, about ten times faster.

All kernels release the interpreter's lock. Importing this module compiles them or reads them from numba's cache.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numba import njit

from dlplacer.data_parallel.ternary.torch_kernels import BLOCK, DRAW_BITS, FIRST, LANES, SECOND, SPREAD

NAME = "numba"
_F = TypeVar("_F", bound=Callable[..., None])
_UNIT = np.float32(2.0**-DRAW_BITS)
_DROPPED = 32 - DRAW_BITS
_word = np.uint32


def _compiled(*signatures: str) -> Callable[[_F], _F]:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

    def compiled(kernel: _F) -> _F:
        try:
            return cast(_F, njit(list(signatures), cache=True, **options)(kernel))
        except RuntimeError:  # No folder on this machine can hold the cache.
            return cast(_F, njit(list(signatures), **options)(kernel))

    return compiled


# Numba multiplies and shifts 32-bit words as 64-bit ones. Casting back at once restores vectors of 32-bit words.
@_compiled("void(f4[::1], f4, f4, i8, i8, i1[::1])")
def _draw(values: Any, limit: Any, scaler: Any, key_0: Any, key_1: Any, codes: Any) -> None:
    unit = np.float32(scaler * _UNIT)
    for index in range(values.shape[0]):
        draw = _word(_word(_word(index) * _word(SPREAD)) + _word(key_0))
        draw = _word(_word(_word(draw ^ _word(draw >> _word(16))) * _word(FIRST)) ^ _word(key_1))
        draw = _word(_word(draw ^ _word(draw >> _word(15))) * _word(SECOND))
        draw = _word(_word(draw ^ _word(draw >> _word(16))) >> _word(_DROPPED))
        value = values[index]
        kept = np.float32(np.int32(draw)) * unit < min(abs(value), limit)
        codes[index] = np.int8(kept and value > 0) - np.int8(kept and value < 0)


@_compiled("void(i1[::1], i8, u4[:,:,::1])", "void(f4[::1], i8, u4[:,:,::1])")
def _pack(values: Any, offset: Any, planes: Any) -> None:
    for block in range(planes.shape[0]):
        held = values[block * BLOCK : (block + 1) * BLOCK]
        for plane in range(planes.shape[1]):
            words = planes[block, plane]
            words[:] = _word(0)
            for bit in range(32):
                for lane in range(LANES):
                    value = _word(np.int32(held[bit * LANES + lane]) + np.int32(offset))
                    words[lane] |= _word(_word(_word(value >> _word(plane)) & _word(1)) << _word(bit))


@_compiled("void(u4[:,:,:,::1], i8, i8[:,::1], f4[:,::1], f4, f4[::1])")
def _decode(rows: Any, offset: Any, table: Any, factors: Any, share: Any, out: Any) -> None:
    held = np.empty(BLOCK, np.int32)
    earliest = 0
    for block in range(rows.shape[1]):
        begin = block * BLOCK
        while earliest < len(table) and table[earliest, 2] + table[earliest, 1] <= begin:
            earliest += 1
        for rank in range(rows.shape[0]):
            held[:] = np.int32(-offset)
            for plane in range(rows.shape[2]):
                words = rows[rank, block, plane]
                for bit in range(32):
                    for lane in range(LANES):
                        one = _word(_word(words[lane] >> _word(bit)) & _word(1))
                        held[bit * LANES + lane] += np.int32(_word(one << _word(plane)))
            for tensor in range(earliest, len(table)):
                start, numel, first = table[tensor, 0], table[tensor, 1], table[tensor, 2] - begin
                if first >= BLOCK:
                    break
                low, high, factor = max(first, 0), min(first + numel, BLOCK), factors[rank, tensor]
                values, part = held[low:high], out[start + low - first : start + high - first]
                if rank == 0:
                    part[:] = np.float32(0)
                for index in range(high - low):
                    part[index] += factor * np.float32(values[index])
                if rank == rows.shape[0] - 1:
                    for index in range(high - low):
                        part[index] *= share


def _on_tensors(kernel: Callable[..., None]) -> Callable[..., None]:
    """The kernel for tensors, with the arguments of the kernels in plain PyTorch."""

    def plain(argument: object) -> object:
        if not isinstance(argument, torch.Tensor):
            return np.float32(argument) if isinstance(argument, float) else argument
        array = argument.numpy()
        return array.view(np.uint32) if array.dtype == np.int32 else array if array.ndim else np.float32(array)

    return lambda *arguments: kernel(*map(plain, arguments))


draw, pack, decode = _on_tensors(_draw), _on_tensors(_pack), _on_tensors(_decode)
