"""A module's parameters and buffers in memory that worker processes see."""

from collections import defaultdict
from collections.abc import Iterable

import torch

from dlplacer.runtime.processes.shared_memory import SharedMemory, rounded_up


class SharedTensors:
    """Moves tensors into shared memory; the tensors stay the same objects, with storages of their own."""

    def __init__(self) -> None:
        self._parts: list[SharedMemory] = []

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Move those that are not there yet. Tensors that share a storage still do afterwards."""
        together: dict[int, list[torch.Tensor]] = defaultdict(list)
        for tensor in tensors:
            if tensor.numel() and not self._holds(tensor):
                together[tensor.untyped_storage().data_ptr()].append(tensor)
        if not together:
            return
        storages = [found[0].untyped_storage() for found in together.values()]
        memory = SharedMemory(sum(rounded_up(storage.nbytes()) for storage in storages))
        self._parts.append(memory)
        for storage, found in zip(storages, together.values(), strict=True):
            home = memory.bytes_at(memory.take(storage.nbytes()), storage.nbytes()).untyped_storage()
            home.copy_(storage)
            for tensor in found:
                # Through .data, so that optimizers which hold the Parameter keep holding the same object.
                tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
                    home, tensor.storage_offset(), tensor.shape, tensor.stride()
                )

    def words(self, count: int) -> memoryview:
        """Shared 64-bit integers, zero at first."""
        memory = SharedMemory(8 * count)
        self._parts.append(memory)
        return memory.words

    def _holds(self, tensor: torch.Tensor) -> bool:
        return any(part.holds(tensor) for part in self._parts)
