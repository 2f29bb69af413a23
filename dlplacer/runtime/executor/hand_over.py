"""How the threads of one process hand tensors to each other: an inbox for each device, with a place for each tensor."""

from threading import Lock

from dlplacer.runtime.devices.base import Value

EMPTY = object()
"""What a place holds before its tensor is there, and after it was taken."""


class Inbox:
    """What other devices hand to one device in one run of a program.

    Every tensor has a place of its own, so that it does not matter in which order the others send. Who finds its
    tensor there goes on at once; only who does not sleeps until the next one comes.

    Parameters
    ----------
    size
        Number of tensors.
    """

    __slots__ = ("_aborted", "_awaited", "_awake", "slots")

    def __init__(self, size: int) -> None:
        self.slots: list[object] = [EMPTY] * size
        self._awaited = -1
        self._aborted = False
        self._awake = Lock()
        self._awake.acquire()

    def put(self, slot: int, value: Value) -> None:
        """On the sender's thread: hand a tensor over."""
        # First the tensor, then the look whether somebody sleeps; `wait` does it the other way round, so that one of
        # the two sees the other.
        self.slots[slot] = value
        if self._awaited == slot:
            self._wake()

    def take(self, slot: int) -> Value:
        """On the device's thread: the tensor that is there, which the inbox lets go."""
        value, self.slots[slot] = self.slots[slot], EMPTY
        return value  # type: ignore[return-value]

    def wait(self, slot: int) -> None:
        """On the device's thread: return when the tensor is there.

        Raises
        ------
        AbortedError
            If another device has failed.
        """
        self._awaited = slot
        while self.slots[slot] is EMPTY:
            if self._aborted:
                raise AbortedError
            self._awake.acquire()
        self._awaited = -1

    def abort(self) -> None:
        """Make the device stop where its tensor is not there."""
        self._aborted = True
        self._wake()

    def _wake(self) -> None:
        # Already released if two senders see one sleeper, who will look again at all that has changed.
        if self._awake.locked():
            try:
                self._awake.release()
            except RuntimeError:
                return


class AbortedError(Exception):
    """Another device failed."""
