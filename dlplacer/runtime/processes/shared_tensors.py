"""A module's parameters and buffers in memory that worker processes see."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch

from dlplacer.runtime.processes.shared_memory import ALIGNMENT, MemoryBlock, SharedMemory, rounded_up

_LARGE_BYTES = 2**16
"""From here on a storage gets memory of its own, which is given back when its tensors are gone. Smaller ones share
theirs: memory begins with a page, and the first lines of all pages are in one set of a core's nearest cache."""


class SharedTensors:
    """Moves tensors into shared memory; the tensors stay the same objects, with storages of their own.

    The memory is theirs: it is gone when they are.
    """

    def __init__(self) -> None:
        self._blocks: list[MemoryBlock] = []

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Move those that are not there yet. Tensors that share a storage still do afterwards."""
        together: dict[int, list[torch.Tensor]] = defaultdict(list)
        for tensor in tensors:
            if tensor.numel() and not self.holds(tensor):
                together[tensor.untyped_storage().data_ptr()].append(tensor)
        groups = list(together.values())
        large = [found for found in groups if found[0].untyped_storage().nbytes() >= _LARGE_BYTES]
        small = [found for found in groups if found[0].untyped_storage().nbytes() < _LARGE_BYTES]
        for part in (*([found] for found in large), small):
            self._move(part)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in this memory."""
        return any(block.holds(tensor) for block in self._blocks)

    def blocks_of(self, tensors: Iterable[torch.Tensor]) -> list[MemoryBlock] | None:
        """The memory in which all of these tensors lie; None if one lies elsewhere, where only this process sees it."""
        found: list[MemoryBlock] = []
        for tensor in tensors:
            if tensor.numel():
                home = next((block for block in self._blocks if block.holds(tensor)), None)
                if home is None:
                    return None
                found.append(home)
        return list(dict.fromkeys(found))

    def words(self, count: int) -> memoryview:
        """Shared 64-bit integers, zero at first."""
        return SharedMemory(8 * count).words

    def _move(self, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        """Move tensors, those of one storage together, into memory of their own."""
        if not groups:
            return
        storages = [found[0].untyped_storage() for found in groups]
        # Memory that the user brought may begin anywhere in a cache line, which the order of rounding depends on.
        begins = [storage.data_ptr() % ALIGNMENT for storage in storages]
        sizes = [begin + storage.nbytes() for begin, storage in zip(begins, storages, strict=True)]
        memory = SharedMemory(sum(map(rounded_up, sizes)))
        self._blocks = [block for block in self._blocks if block.is_used]
        self._blocks.append(memory.block)
        for storage, begin, size, found in zip(storages, begins, sizes, groups, strict=True):
            home = memory.bytes_at(memory.take(size) + begin, storage.nbytes()).untyped_storage()
            home.copy_(storage)
            for tensor in found:
                # Through .data, so that optimizers which hold the Parameter keep holding the same object.
                tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
                    home, tensor.storage_offset(), tensor.shape, tensor.stride()
                )


class SharedHomes:
    """Tensors that all processes of a step see at the same place, as a module's parameters: nobody has to copy them.

    Parameters
    ----------
    tensors
        In shared memory, the same ones in the same order in every process.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._storages = [tensor.untyped_storage() for tensor in tensors]
        self._number = {storage.data_ptr(): number for number, storage in enumerate(self._storages)}

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Which of them a tensor is a view of; None if of none."""
        return self._number.get(tensor.untyped_storage().data_ptr())

    def view(
        self, number: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> torch.Tensor:
        """The tensor that lies in the storage of one of them, from an element on."""
        return torch.empty(0, dtype=dtype).set_(self._storages[number], offset, shape, strides)
