"""What the executors of several processes hand each other: slots in shared memory."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dlplacer.runtime.processes.result_slot import AnySlot
from dlplacer.runtime.processes.slot import Watch


class SharedLinks:
    """The `ProcessLinks` of one process.

    Parameters
    ----------
    slots
        Tensor on its way between devices → its slot.
    watch
        Called while a receiver sleeps; raises if the run has failed.
    failed
        Called when something has failed here.
    results
        Tensor that only the caller gets → its slot.

    Attributes
    ----------
    run
        Number of the run, which whoever starts it sets.
    """

    on_device = False

    def __init__(
        self,
        slots: Mapping[str, AnySlot],
        watch: Watch,
        failed: Callable[[], None],
        results: Mapping[str, AnySlot] = MappingProxyType({}),
    ) -> None:
        self.run = 0
        self._slots = slots
        self._sent = {**results, **slots}
        self._watch = watch
        self._failed = failed

    def begin(self) -> None:
        """Nothing to prepare: a slot knows of which run its tensor is."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:  # noqa: ARG002
        """Write the tensor; once for all targets."""
        self._sent[tensor].put(value, self.run)

    def receive(self, tensor: str, source: str, target: str) -> Any:  # noqa: ARG002
        """The tensor where its producer has written it."""
        return self._slots[tensor].get(self.run, self._watch)

    def fail(self, error: BaseException) -> None:  # noqa: ARG002
        """Have all processes stop at their next receive."""
        self._failed()
