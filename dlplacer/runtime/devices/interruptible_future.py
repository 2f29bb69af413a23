"""What another thread will answer, awaited where a Ctrl-C may come."""

import threading
from concurrent.futures import Future, InvalidStateError
from typing import TypeVar

T = TypeVar("T")


class InterruptibleFuture(Future[T]):
    """A future whose result a Ctrl-C may interrupt anywhere.

    `Future.result` takes a lock, in Python, that the other thread needs to give the result: interrupted while it
    enters, it would leave the lock taken, and that thread waiting for ever. So who waits here touches that lock only
    once there is a result, and who gives one does not touch it afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given = False
        self._pending = threading.Lock()
        self._pending.acquire()

    def result(self, timeout: float | None = None) -> T:
        """The result, once it is there; TimeoutError if it is not within so many seconds."""
        # Who was interrupted behind acquire leaves the lock taken: it is not asked for again once there is a result.
        if not self._given and self._pending.acquire(timeout=-1 if timeout is None else timeout):
            self._pending.release()
        if not self._given:
            raise TimeoutError
        return super().result()

    def set_result(self, result: T) -> None:
        """Have `result` return this; InvalidStateError if there was an answer before."""
        self._require_open()
        super().set_result(result)
        self._give()

    def set_exception(self, exception: BaseException | None) -> None:
        """Have `result` raise this; InvalidStateError if there was an answer before."""
        self._require_open()
        super().set_exception(exception)
        self._give()

    def _require_open(self) -> None:
        if self._given:
            raise InvalidStateError("there is an answer already")

    def _give(self) -> None:
        self._given = True
        self._pending.release()
