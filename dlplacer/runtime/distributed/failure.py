"""A failure on one process ends the run on all of them, with the error of the one where it began."""

import contextlib
import json
import queue
import threading
import time
from concurrent.futures import Future, InvalidStateError
from typing import Any

from dlplacer.core.errors import RunError, first_line

_KEY = "dlplacer/failure"
_POLL_S = 0.1
_POST_LIMIT_S = 5.0


class Failure:
    """What the threads of one process wait with, so that an error elsewhere wakes them.

    Parameters
    ----------
    store
        A connection to the group's store that nothing else uses, or None for a process alone.
    """

    def __init__(self, rank: int, store: Any, timeout_s: float) -> None:
        self.rank = rank
        self.timeout_s = timeout_s
        self.error: RunError | None = None
        self._store = store
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._closed = threading.Event()
        if store is not None:
            threading.Thread(target=self._watch, name=f"rank{rank} watch", daemon=True).start()

    def future(self) -> "Future[Any]":
        """A future that fails with the run."""
        future: Future[Any] = Future()
        with self._lock:
            if self.error is not None:
                future.set_exception(self.error)
            else:
                self._pending.add(future)
        return future

    def done(self, future: "Future[Any]", result: Any) -> None:
        """Give a future its result, unless the run has failed."""
        with self._lock:
            self._pending.discard(future)
        with contextlib.suppress(InvalidStateError):
            future.set_result(result)

    def wait(self, future: "Future[Any]", what: str) -> Any:
        """The result of a future.

        Raises
        ------
        RunError
            If the run fails on any process, or the result is not there within the time limit.
        """
        try:
            return future.result(self.timeout_s)
        except TimeoutError:
            error = RunError(
                f"rank {self.rank} waited {self.timeout_s:g} s for {what}; another rank is slow, stuck or does not "
                "take this step: raise the timeout, or call step on every rank"
            )
            self.fail(error)
            raise error from None

    def fail(self, error: BaseException) -> RunError:
        """End the run here and inform the other processes; returns the error where it began.

        It returns once the others had time to read what was posted: this process may hold the store, and end.
        """
        with self._lock:
            first = self.error is None
        mine = json.dumps({"rank": self.rank, "message": str(error) or type(error).__name__})
        posted = self._post(mine) if first and self._store is not None else None
        if posted not in (None, mine):
            return self._end(_posted_error(posted))
        ended = self._end(error if isinstance(error, RunError) else RunError(json.loads(mine)["message"]))
        if posted is not None:
            time.sleep(4 * _POLL_S)
        return ended

    def lost(self, what: str, error: BaseException) -> None:
        """A connection broke: find out whether another process failed first, and end the run with its error."""
        deadline = time.monotonic() + 10 * _POLL_S
        while self.error is None and not self._closed.is_set() and time.monotonic() < deadline:
            time.sleep(_POLL_S / 2)
        if not self._closed.is_set():
            reason = first_line(error).partition(". This is typ")[0]
            self.fail(RunError(f"rank {self.rank} failed at {what}; a process has ended or is out of reach: {reason}"))

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()

    def _end(self, error: RunError) -> RunError:
        with self._lock:
            if self.error is None:
                self.error = error
            pending, self._pending = self._pending, set()
        for future in pending:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(self.error)
        return self.error

    def _post(self, mine: str) -> str | None:
        """What stands in the store afterwards; None if it does not answer: its process is gone or stuck."""
        found: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def post() -> None:
            try:
                found.put(self._store.compare_set(_KEY, "", mine).decode())
            except Exception:
                found.put(None)

        threading.Thread(target=post, name=f"rank{self.rank} post", daemon=True).start()
        try:
            return found.get(timeout=_POST_LIMIT_S)
        except queue.Empty:
            return None

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_S) and self.error is None:
            try:
                if self._store.check([_KEY]):
                    self._end(_posted_error(self._store.get(_KEY).decode()))
            except Exception:
                if not self._closed.wait(5 * _POLL_S):
                    self._end(
                        RunError(f"rank {self.rank} lost the store of its group: the process that holds it ended")
                    )
                return


def _posted_error(posted: str) -> RunError:
    found = json.loads(posted)
    where = f"rank {found['rank']}"
    return RunError(found["message"] if found["message"].startswith(where) else f"{where}: {found['message']}")
