"""A place in shared memory for a tensor that the caller gets."""

from typing import Any

import torch

from dlplacer.runtime.devices.base import Value
from dlplacer.runtime.processes.shared_memory import SharedMemory
from dlplacer.runtime.processes.slot import TensorSlot, Watch, own_copy


class ResultSlot:
    """Two places for one result: the caller gets what lies in the first, and a copy while somebody still uses that.

    Most gradients are dropped before the next step makes new ones. Those of a GNMT of 256 units that come from another
    device take 12 MB: copied, that is a fifth of its step.

    Attributes
    ----------
    is_used
        Whether the next run writes to the second place; the same in the caller's process and in the maker's.
    """

    def __init__(self, name: str, memory: SharedMemory, capacity_bytes: int) -> None:
        self._first, self._second = (TensorSlot(name, memory, capacity_bytes) for _ in range(2))
        self.is_used = False

    @staticmethod
    def size_bytes(capacity_bytes: int) -> int:
        """What both places take of the memory."""
        return 2 * TensorSlot.size_bytes(capacity_bytes)

    def look(self) -> bool:
        """See whether somebody still uses what the caller got last; asked before every run."""
        self.is_used = self._first.is_used
        return self.is_used

    def put(self, value: Value, run: int) -> None:
        """Write the tensor of a run; a second time does nothing."""
        (self._second if self.is_used else self._first).put(value, run)

    def get(self, run: int, watch: Watch) -> Value:
        """The tensor of a run for a device that reads it, valid until the run ends everywhere."""
        return (self._second if self.is_used else self._first).get(run, watch)

    def take(self, run: int, watch: Watch) -> Any:
        """The tensor of a run for the caller to keep, once it is there."""
        value = self.get(run, watch)
        if value is None:
            return None
        return own_copy(value) if self.is_used else _alike(value)


AnySlot = TensorSlot | ResultSlot


def taken(slot: AnySlot, run: int, watch: Watch) -> Any:
    """What a slot holds of a run, for the caller to keep: the next run writes to a `TensorSlot` again."""
    if isinstance(slot, ResultSlot):
        return slot.take(run, watch)
    value = slot.get(run, watch)
    return None if value is None else own_copy(value)


def _alike(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same elements that is no view of another: autograd keeps as a gradient what nobody else has."""
    return torch.empty(0, dtype=value.dtype).set_(
        value.untyped_storage(), int(value.storage_offset()), value.shape, value.stride()
    )
