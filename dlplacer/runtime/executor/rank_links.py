"""How an executor reaches the devices of its program that are not its own: those of other processes."""

from typing import Any, Protocol


class RankLinks(Protocol):
    """Carries what crosses processes in one program. All but `fail` is called on the thread of the device here."""

    def begin(self, device: str) -> None:
        """Before a run: expect the device's messages."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Start moving a tensor, and go on."""

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """Wait for a tensor."""

    def end(self, device: str) -> None:
        """After a run: wait until the device's tensors have left."""

    def fail(self) -> None:
        """End the run in all processes: an action has failed here."""
