"""The workers of a step, from the side of the caller's process: forking, asking, and noticing their end."""

import contextlib
import json
import os
import signal
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, cast

from dlplacer.core.errors import RunError
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.hand_over import AbortedError
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.slot import SPINS
from dlplacer.runtime.processes.worker import (
    FAILED,
    FIRST_DONE,
    STARTED,
    WORDS_EACH,
    StepPrograms,
    Worker,
    live_as_worker,
)

_READY_LIMIT_S = 60.0
"""A worker compiles its programs first; if a lock was held elsewhere when it was forked, it never answers."""
_forking = threading.Lock()


@dataclass(frozen=True)
class WorkerHandle:
    """A worker as its parent sees it."""

    device: str
    pid: int
    connection: Connection


class WorkerGroup:
    """One process for every device but the first, which the caller's process drives itself.

    Parameters
    ----------
    first
        The first device: its thread forks, as it has never used a pool of threads, and lives as long as the device. (A
        worker is told of the end of the thread that forked it, not of its process's.)
    away
        Name in the programs → device, for the others.

    Attributes
    ----------
    run
        Number of the last run.
    dropped
        Numbers of states that nobody needs any more.
    """

    def __init__(self, shared: StepPrograms, first: CpuDevice, away: Mapping[str, CpuDevice]) -> None:
        self.slots = shared.slots
        self.run = 0
        self.dropped: list[int] = []
        self._words = shared.slots.memory.words
        self._workers: list[WorkerHandle] = []
        self._dead: dict[int, str] = {}
        self._reaping = threading.Lock()
        self._finalizer = weakref.finalize(self, _kill, self._workers, self._dead, self._reaping, os.getpid())
        try:
            for number, (name, device) in enumerate(away.items()):
                first.submit(partial(self._fork, shared, name, number, device)).result()
            for worker in self._workers:
                self._await_ready(worker)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.pid for worker in self._workers)

    @property
    def closed(self) -> bool:
        """Whether the workers were ended."""
        return not self._finalizer.alive

    def start(self, asked: Mapping[str, Any]) -> None:
        """Have all workers run a program, whose number of the run is `run`; its inputs are in their slots."""
        dropped, self.dropped[:] = list(self.dropped), []
        line = json.dumps({**asked, "run": self.run, "drop": dropped} if dropped else {**asked, "run": self.run})
        self._words[STARTED] = self.run
        for worker in self._workers:
            # What a dead worker was asked is noticed where it is waited for.
            with contextlib.suppress(OSError):
                worker.connection.send_bytes(line.encode())

    def fail(self) -> None:
        """Have all processes stop at their next receive."""
        self._words[FAILED] = self.run

    def watch(self) -> None:
        """Called while a thread of this process waits for a tensor; raises AbortedError if the run has failed."""
        if self._words[FAILED] == self.run:
            raise AbortedError
        if any(self._ended(worker) for worker in self._workers):
            self.fail()
            raise AbortedError

    def finish(self) -> dict[str, dict[str, Any]]:
        """Device → what its worker answered to the run, once all have.

        Raises
        ------
        RunError
            If a worker is gone; the group is closed then.
        """
        answers: dict[str, dict[str, Any]] = {}
        waiting = {worker.connection: worker for worker in self._workers}
        # Asking the system who is ready takes as long as twenty ops: not if all are.
        ready = list(waiting) if self._spin() else []
        while waiting:
            for connection in ready or wait(list(waiting)):
                worker = waiting.pop(cast("Connection", connection))
                try:
                    answers[worker.device] = json.loads(worker.connection.recv_bytes())
                except (EOFError, OSError):
                    self.fail()
                    answers[worker.device] = {"gone": True}
        gone = [worker for worker in self._workers if "gone" in answers[worker.device]]
        if gone:
            self.close()
            raise RunError(
                f"the process of device {gone[0].device!r} {self._dead[gone[0].pid]}; the next step starts another"
            )
        return answers

    def close(self) -> None:
        """End the workers."""
        self._finalizer()

    def _spin(self) -> bool:
        """Whether all workers are done within a short while."""
        words, run = self._words, self.run
        places = [FIRST_DONE + WORDS_EACH * number for number in range(len(self._workers))]
        return any(min(map(words.__getitem__, places)) == run for _ in range(SPINS))

    def _fork(self, shared: StepPrograms, name: str, number: int, device: CpuDevice) -> None:
        """On the first device's thread."""
        with _forking, _blocked_interrupts(), warnings.catch_warnings():
            # Python warns that threads are not forked: workers use none.
            warnings.simplefilter("ignore", DeprecationWarning)
            ours, theirs = Pipe()
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    ours.close()
                    live_as_worker(parent, device.core)
                    Worker(shared, name, number, InlineDevice(device.name, device.type)).serve(theirs)
                    code = 0
                except BaseException:
                    if os.environ.get("DLPLACER_DEBUG"):
                        traceback.print_exc()
                finally:
                    # Nothing of the parent's is to be tidied up here, or written out a second time.
                    os._exit(code)
            theirs.close()
        self._workers.append(WorkerHandle(device.name, pid, ours))

    def _await_ready(self, worker: WorkerHandle) -> None:
        try:
            if worker.connection.poll(_READY_LIMIT_S):
                worker.connection.recv_bytes()
                return
            what = f"did not begin within {_READY_LIMIT_S:g} s"
        except (EOFError, OSError):
            what = "ended before it began"
        raise RunError(f'the process of device {worker.device!r} {what}; apply the plan with processes="off"')

    def _ended(self, worker: WorkerHandle) -> bool:
        with self._reaping:
            return _reap(worker, self._dead, os.WNOHANG)


def _kill(workers: list[WorkerHandle], dead: dict[int, str], reaping: threading.Lock, owner: int) -> None:
    """End workers, which hold nothing that would have to be saved; in a fork of their parent do nothing."""
    if os.getpid() != owner:
        return
    with reaping:
        for worker in workers:
            if not _reap(worker, dead, os.WNOHANG):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
        for worker in workers:
            _reap(worker, dead, 0)
            worker.connection.close()


def _reap(worker: WorkerHandle, dead: dict[int, str], options: int) -> bool:
    """Whether a worker has ended; then how is noted."""
    if worker.pid in dead:
        return True
    try:
        pid, status = os.waitpid(worker.pid, options)
    except ChildProcessError:
        dead[worker.pid] = "has ended"
        return True
    if pid == worker.pid:
        dead[pid] = _ending(os.waitstatus_to_exitcode(status))
    return pid == worker.pid


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL): by a user, or by the system, which was out of memory; see dmesg"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """No Ctrl-C between fork and the moment at which the worker leaves it to its parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
