"""A place in shared memory for one tensor: who makes it writes it there once a run, and everyone else looks at it."""

import time
from collections.abc import Callable
from itertools import repeat

import torch

from dlplacer.core.errors import RunError
from dlplacer.runtime.devices.base import Value
from dlplacer.runtime.processes.shared_memory import ALIGNMENT, SharedMemory, rounded_up
from dlplacer.runtime.processes.shared_tensors import SharedHomes
from dlplacer.runtime.processes.storage_users import users

SPINS = 15_000
"""Looks at a word before its reader sleeps between two: about a millisecond. A nap ends up to 0.1 ms late; with a fifth
of these looks the steps of a GNMT, which wait for longer now and then, took 6 % longer."""
_NAP_S = 50e-6
"""How long a reader sleeps who has waited for longer: what it comes late is little beside what it waited."""

_MOST_DIMENSIONS = 16
_WORD, _KIND, _HOME, _FIRST, _SHAPE = 0, 1, 2, 3, 4
_STRIDES = _SHAPE + _MOST_DIMENSIONS
_HEADER_BYTES = rounded_up(8 * (_STRIDES + _MOST_DIMENSIONS))
_NO_HOME = -1
_LAYOUTS = 256
"""A slot's word is run number × this + number of the layout."""
_DTYPES = tuple(
    sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str),
)

Watch = Callable[[], None]
"""Called while a reader sleeps; raises if what it waits for cannot come."""
Layout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]
"""Dtype, shape, strides; then by how many bytes the tensor begins behind the beginning of a cache line, or, where it is
not copied, the address of its first element for the writer and the place of that in its storage for readers."""


def wait_for(words: memoryview, place: int, least: int, watch: Watch) -> int:
    """Return a word once it is at least a number: spin for a short while, then sleep between two looks."""
    for _ in repeat(None, SPINS):
        if (word := words[place]) >= least:
            return int(word)
    while (word := words[place]) < least:
        watch()
        time.sleep(_NAP_S)
    return int(word)


NO_HOMES = SharedHomes()


class TensorSlot:
    """One tensor's place. After a fork, every process has this object with its own view of the same memory.

    A view of what all processes see is not copied: its place there is handed over. On a GNMT of 256 units two thirds of
    63 MB a step were weights, each once for every time that it is transposed.

    The writer stores the elements before the word, and the processor keeps that order (x86's total store order).

    Parameters
    ----------
    capacity_bytes
        What the tensor's storage needs at most.
    homes
        What all processes see.
    """

    __slots__ = (
        "_bytes",
        "_capacity_bytes",
        "_copied",
        "_homes",
        "_layout",
        "_number",
        "_own_users",
        "_place",
        "_run",
        "_view",
        "_words",
        "name",
    )

    def __init__(self, name: str, memory: SharedMemory, capacity_bytes: int, homes: SharedHomes = NO_HOMES) -> None:
        self.name = name
        self._homes = homes
        self._place = memory.take(_HEADER_BYTES) // 8
        self._words = memory.words
        self._capacity_bytes = capacity_bytes
        self._bytes = memory.bytes_at(memory.take(capacity_bytes + ALIGNMENT), capacity_bytes + ALIGNMENT)
        self._layout: Layout | None = None
        self._copied = True
        self._view: Value = None
        self._own_users = users(self._bytes)
        self._number = 0
        self._run = 0

    @property
    def is_used(self) -> bool:
        """Whether a tensor besides this slot's own uses the memory where copies lie."""
        return users(self._bytes) > self._own_users

    @staticmethod
    def size_bytes(capacity_bytes: int) -> int:
        """What a slot takes of the memory."""
        return _HEADER_BYTES + rounded_up(capacity_bytes + ALIGNMENT)

    def put(self, value: Value, run: int) -> None:
        """Write the tensor of a run; a second time does nothing."""
        if self._run == run:
            return
        if value is None:
            number = 0
        else:
            # Kernels choose the strides of what they make, and others rely on them; products of matrices round in an
            # order that depends on where in a cache line these begin: the copy has the same.
            layout, first = self._layout, value.data_ptr()
            if self._copied:
                first %= ALIGNMENT
            if (
                layout is None
                or value.stride() != layout[2]
                or value.shape != layout[1]
                or first != layout[3]
                or value.dtype != layout[0]
            ):
                self._lay_out(value)
            if self._copied:
                _copy(self._view, value)
            number = self._number
        self._run = run
        self._words[self._place] = run * _LAYOUTS + number

    def get(self, run: int, watch: Watch) -> Value:
        """The tensor of a run, once it is there; valid until the run ends everywhere."""
        word = self._words[self._place]
        if word < run * _LAYOUTS:
            word = wait_for(self._words, self._place, run * _LAYOUTS, watch)
        number = word % _LAYOUTS
        if not number:
            return None
        if number != self._number:
            self._read_layout()
            self._number = number
        return self._view

    def _lay_out(self, value: torch.Tensor) -> None:
        home = self._homes.number_of(value)
        self._copied = home is None
        strides, address = value.stride(), value.data_ptr()
        if home is None and _extent(value.shape, strides) * value.itemsize > self._capacity_bytes:
            strides = torch.empty_like(value, device="meta").stride()  # without gaps
        need = _extent(value.shape, strides) * value.itemsize
        if value.dim() > _MOST_DIMENSIONS:
            raise self._refusal(value, f"has {value.dim()} dimensions, more than the {_MOST_DIMENSIONS}")
        if home is None and need > self._capacity_bytes:
            raise self._refusal(value, f"needs {need} bytes, more than the {self._capacity_bytes} at its capture")
        words, place = self._words, self._place
        words[place + _KIND] = _DTYPES.index(value.dtype) * _LAYOUTS + value.dim()
        words[place + _HOME] = _NO_HOME if home is None else home
        words[place + _FIRST] = address % ALIGNMENT if home is None else int(value.storage_offset())
        for dimension, (size, stride) in enumerate(zip(value.shape, strides, strict=True)):
            words[place + _SHAPE + dimension] = size
            words[place + _STRIDES + dimension] = stride
        self._number = self._number % (_LAYOUTS - 1) + 1
        if home is None:
            self._look_at((value.dtype, tuple(value.shape), value.stride(), address % ALIGNMENT), strides)
        else:
            self._layout = value.dtype, tuple(value.shape), strides, address
            self._view = value

    def _refusal(self, value: torch.Tensor, reason: str) -> RunError:
        what = f"tensor {self.name!r} of shape {list(value.shape)} {reason}"
        return RunError(f'{what} that processes can hand over: apply the plan with processes="off"')

    def _read_layout(self) -> None:
        words, place = self._words, self._place
        kind, count = divmod(words[place + _KIND], _LAYOUTS)
        shape = tuple(words[place + _SHAPE : place + _SHAPE + count])
        strides = tuple(words[place + _STRIDES : place + _STRIDES + count])
        layout, home = (_DTYPES[kind], shape, strides, words[place + _FIRST]), words[place + _HOME]
        if home == _NO_HOME:
            self._look_at(layout, strides)
        else:
            self._view = self._homes.view(home, *layout)

    def _look_at(self, layout: Layout, strides: tuple[int, ...]) -> None:
        dtype, shape, _, first = layout
        # Memory that the user brought may begin within an element.
        begin, size_bytes = first - first % dtype.itemsize, _extent(shape, strides) * dtype.itemsize
        elements = self._bytes[begin : begin + size_bytes].view(dtype)
        self._view = elements.as_strided(shape, strides, elements.storage_offset())
        self._layout = layout
        del elements
        # A new layout comes only where nobody else looks at the memory: views may have bases of their own.
        self._own_users = users(self._bytes)


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, with the same strides where the tensor has no gaps."""
    if 0 not in tensor.stride():
        return tensor.clone(memory_format=torch.preserve_format)
    return _without_repeats(tensor).clone(memory_format=torch.preserve_format).expand(tensor.shape)


def _copy(target: Value, value: torch.Tensor) -> None:
    assert target is not None
    if 0 in value.stride() and value.numel() > 1:
        target, value = _without_repeats(target), _without_repeats(value)
    target.copy_(value)


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """One element along each dimension that an expansion has made, which are one and the same in memory."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(dimension, 0, min(1, tensor.shape[dimension]))
    return tensor


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
