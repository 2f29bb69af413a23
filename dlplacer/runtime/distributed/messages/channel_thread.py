"""A thread that waits on the network so that nothing else has to."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dlplacer.core.errors import RunError
from dlplacer.runtime.distributed.failure import Failure

_Job = tuple["Future[Any]", str, Callable[[], Any]]


class ChannelThread:
    """Runs jobs one after another on a daemon thread; a job that fails ends the run on all processes."""

    def __init__(self, name: str, failure: Failure) -> None:
        self._failure = failure
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, what: str, work: Callable[[], Any]) -> "Future[Any]":
        """Queue a job; `what` names it in an error."""
        future = self._failure.future()
        self._jobs.put((future, what, work))
        return future

    def close(self) -> None:
        """End the thread after what is queued."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, what, work = job
            if self._failure.error is not None:
                continue
            try:
                self._failure.done(future, work())
            except RunError:
                continue
            except BaseException as error:
                self._failure.lost(what, error)
            del job, future, work
