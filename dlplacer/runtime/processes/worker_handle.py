"""A worker as its parent sees it: asked, waited for, ended."""

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from dlplacer.core.errors import RunError
from dlplacer.planning.interrupt import deferred_interrupts

_READY_LIMIT_S = 60.0
"""If a lock was held elsewhere when a worker was forked, it never answers."""


@dataclass(frozen=True)
class WorkerHandle:
    """A worker process.

    Attributes
    ----------
    device
        Name of its device.
    """

    device: str
    pid: int
    connection: Connection
    _owner: int = field(default_factory=os.getpid)
    _ending: list[str] = field(default_factory=list)
    _reaping: threading.Lock = field(default_factory=threading.Lock)

    def await_ready(self) -> None:
        """Return once the worker has said that it begins; raises RunError if it does not."""
        try:
            if self.connection.poll(_READY_LIMIT_S):
                self.connection.recv_bytes()
                return
            what = f"did not begin within {_READY_LIMIT_S:g} s"
        except (EOFError, OSError):
            what = "ended before it began"
        raise RunError(f'the process of device {self.device!r} {what}; apply the plan with processes="off"')

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._reaped(os.WNOHANG)

    @property
    def ending(self) -> str:
        """How it has ended, in words."""
        return self._ending[0] if self._ending else "has ended"

    def kill(self) -> None:
        """End the process, which holds nothing that would have to be saved; in a fork of its parent do nothing."""
        if os.getpid() == self._owner and not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Wait for its end, after `kill`."""
        if os.getpid() == self._owner:
            self._reaped(0)
            self.connection.close()

    def _reaped(self, options: int) -> bool:
        with self._reaping:
            if self._ending:
                return True
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                self._ending.append("has ended")
                return True
            if pid:
                self._ending.append(_ending(os.waitstatus_to_exitcode(status)))
            return bool(pid)


def end_workers(workers: Sequence[WorkerHandle]) -> None:
    """End all of them and wait for it, also if a Ctrl-C comes: nobody would end those that are left."""
    with deferred_interrupts():
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.bury()


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL): by a user, or by the system, which was out of memory; see dmesg"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
