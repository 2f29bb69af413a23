"""How an executor reaches the devices of its program that are not its own: those of other processes."""

from typing import Any, Protocol


class RankLinks(Protocol):
    """Carries what crosses processes in one program.

    Attributes
    ----------
    on_device
        Whether tensors are handed over on their own device, not in the host's memory.
    """

    on_device: bool

    def begin(self) -> None:
        """Before a run of the program: expect its messages."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """On the source's thread: start moving a tensor, and go on."""

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """On the target's thread: wait for a tensor."""

    def fail(self, error: BaseException) -> None:
        """End the run in all processes: an action has failed here."""
