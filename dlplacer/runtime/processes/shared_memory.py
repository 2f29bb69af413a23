"""Memory that this process shares with those that it forks."""

import mmap
import weakref
from dataclasses import dataclass

import torch

ALIGNMENT = 64
"""A cache line: two words that different cores write never share one."""


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Where a `SharedMemory` lies; it keeps nothing alive."""

    begin: int
    size_bytes: int
    memory: "weakref.ref[mmap.mmap]"

    @property
    def is_used(self) -> bool:
        """Whether a tensor or a view of its words still refers to it."""
        return self.memory() is not None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's elements are in this memory."""
        return self.is_used and self.begin <= tensor.data_ptr() < self.begin + self.size_bytes


class SharedMemory:
    """Anonymous memory, the same in this process and in those forked afterwards; gone when nothing refers to it.

    Not in ``/dev/shm``, which containers keep small, and without a descriptor for each tensor. Pages that nobody
    touches take no memory.

    Attributes
    ----------
    block
        Where it lies.
    words
        The memory as 64-bit integers. Reading and writing one is one machine instruction.
    """

    def __init__(self, size_bytes: int) -> None:
        size_bytes = max(rounded_up(size_bytes), mmap.PAGESIZE)
        self._map = mmap.mmap(-1, size_bytes)
        begin = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        self.block = MemoryBlock(begin, size_bytes, weakref.ref(self._map))
        self._taken = 0
        self.words = memoryview(self._map).cast("q")

    def take(self, size_bytes: int) -> int:
        """The first byte of a part that nobody else has."""
        first = self._taken
        self._taken += rounded_up(size_bytes)
        return first

    def bytes_at(self, first: int, size_bytes: int) -> torch.Tensor:
        """A part as a tensor of bytes with a storage of its own."""
        if not size_bytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size_bytes, offset=first)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's elements are in this memory."""
        return self.block.holds(tensor)


def rounded_up(size_bytes: int) -> int:
    """A size that keeps what comes behind it aligned."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
