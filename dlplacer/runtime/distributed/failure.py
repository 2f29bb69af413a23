"""A failure on one process ends the run on all of them, with the error of the one where it began."""

import contextlib
import hashlib
import hmac
import json
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from dlplacer.core.errors import RunError, first_line
from dlplacer.runtime.devices.worker import InterruptibleFuture

T = TypeVar("T")
_POLL_S = 0.1
_SIGNATURE = 64
"""Characters of a SHA-256 in hexadecimal."""
_POST_LIMIT_S = 5.0
_SIGN_OF_LIFE_S = 2.0
"""A process that has not been heard of for so long is gone: on a busy machine a thread waits tens of milliseconds."""


class LostRankError(RunError):
    """Another process is gone: what this one waited for cannot come."""


class Failure:
    """What the threads of one process wait with, so that an error elsewhere wakes them.

    Parameters
    ----------
    store
        A connection to the group's store that nothing else uses, or None for a process alone.
    count
        Processes in the group.
    """

    def __init__(self, rank: int, store: Any, timeout_s: float, count: int = 1) -> None:
        self.rank = rank
        self.timeout_s = timeout_s
        self.error: RunError | None = None
        self._store = store
        self._count = count
        self._key = ""
        self._secret = b""
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._closed = threading.Event()
        self._watching: threading.Thread | None = None

    def watch(self, secret: str) -> None:
        """From now on, inform the other processes of an error here, and be informed.

        Parameters
        ----------
        secret
            Known to the processes of the group alone; what they post is signed with it, so that nobody else can end
            the run: a store takes whatever anyone in reach writes.
        """
        if self._store is not None:
            self._secret = secret.encode()
            self._key = f"dlplacer/{hashlib.sha256(self._secret).hexdigest()[:16]}"
            self._watching = threading.Thread(target=self._watch, name=f"rank{self.rank} watch", daemon=True)
            self._watching.start()

    def future(self) -> "Future[Any]":
        """A future that fails with the run."""
        future: Future[Any] = InterruptibleFuture()
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
        lost = isinstance(error, LostRankError)
        message = str(error) or type(error).__name__
        mine = self._signed(json.dumps({"rank": self.rank, "message": message, "lost": lost}))
        posted = self._post(mine) if first and self._key else None
        if posted not in (None, mine):
            return self._end(_posted_error(posted))
        ended = self._end(error if isinstance(error, RunError) else RunError(message))
        if posted is not None:
            time.sleep(4 * _POLL_S)
        return ended

    def lost(self, what: str, error: BaseException) -> None:
        """A connection broke: find out whether another process failed first or is gone, and end the run with that."""
        gone = self._silent_ranks()
        if self._closed.is_set() or self.error is not None:
            return
        reason = first_line(error).partition(". This is typ")[0]
        who = " and ".join(f"rank {rank}" for rank in gone) if gone else "a process"
        self.fail(LostRankError(f"{who} has ended or is out of reach: rank {self.rank} failed at {what}: {reason}"))

    def close(self) -> None:
        """Watch no longer; it returns when nobody asks the store any more, or the store does not answer for a second.

        A thread that is inside a call of torch when Python ends is torn out of it, and the process aborts.
        """
        self._closed.set()
        if self._watching is not None and self._watching is not threading.current_thread():
            self._watching.join(10 * _POLL_S)

    def _end(self, error: RunError) -> RunError:
        with self._lock:
            if self.error is None:
                self.error = error
            pending, self._pending = self._pending, set()
        for future in pending:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(self.error)
        return self.error

    def _silent_ranks(self) -> list[int]:
        """Ranks that give no sign of life for a while; none once the run has ended otherwise.

        Without an answer of the store, it is the process that holds it.
        """
        before = self._signs_of_life()
        deadline = time.monotonic() + _SIGN_OF_LIFE_S
        silent = [rank for rank in range(self._count) if rank != self.rank]
        while silent and self.error is None and not self._closed.wait(_POLL_S) and time.monotonic() < deadline:
            now = self._signs_of_life()
            if now is None or before is None:
                return [0]
            silent = [rank for rank in silent if now[rank] == before[rank]]
        return silent if self._key else []

    def _signs_of_life(self) -> list[int] | None:
        """[rank] → how often it was heard of; None if the store is gone."""
        if not self._key:
            return [0] * self._count
        return self._answer(
            lambda: [int(self._store.add(f"{self._key}/alive/{rank}", 0)) for rank in range(self._count)]
        )

    def _post(self, mine: str) -> str | None:
        """What stands in the store afterwards; None if it does not answer: its process is gone or stuck."""

        def post() -> str:
            found = str(self._store.compare_set(self._key, "", mine).decode(errors="replace"))
            if self._is_signed(found):
                return found
            self._store.set(self._key, mine)
            return mine

        return self._answer(post)

    def _signed(self, text: str) -> str:
        """A text behind its signature, which only processes of the group can make."""
        return hmac.new(self._secret, text.encode(), "sha256").hexdigest() + text

    def _is_signed(self, posted: str) -> bool:
        return hmac.compare_digest(posted.encode(), self._signed(posted[_SIGNATURE:]).encode())

    def _answer(self, question: Callable[[], T]) -> T | None:
        """What the store says, or None: it may be gone, or never answer."""
        found: queue.SimpleQueue[T | None] = queue.SimpleQueue()

        def ask() -> None:
            try:
                found.put(question())
            except Exception:
                found.put(None)

        threading.Thread(target=ask, name=f"rank{self.rank} question", daemon=True).start()
        try:
            return found.get(timeout=_POST_LIMIT_S)
        except queue.Empty:
            return None

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_S) and self.error is None:
            try:
                self._store.add(f"{self._key}/alive/{self.rank}", 1)
                if self._store.check([self._key]):
                    posted = self._store.get(self._key).decode(errors="replace")
                    # What this process has posted ends it as it was raised here, which `fail` sees to.
                    if self._is_signed(posted) and json.loads(posted[_SIGNATURE:])["rank"] != self.rank:
                        self._end(_posted_error(posted))
            except Exception:
                if not self._closed.wait(5 * _POLL_S):
                    self._end(
                        LostRankError(
                            "rank 0 or torchrun, which holds the store of the group, has ended or is out of reach of "
                            f"rank {self.rank}"
                        )
                    )
                return


def _posted_error(posted: str) -> RunError:
    found = json.loads(posted[_SIGNATURE:])
    message = found["message"] if found["message"].startswith("rank ") else f"rank {found['rank']}: {found['message']}"
    return LostRankError(message) if found["lost"] else RunError(message)
