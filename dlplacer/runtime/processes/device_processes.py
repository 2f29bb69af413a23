"""The workers of a step, from the side of the caller's process: forking, asking, and noticing their end."""

import contextlib
import json
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

from dlplacer.core.errors import RunError
from dlplacer.planning.interrupt import deferred_interrupts
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.hand_over import AbortedError
from dlplacer.runtime.processes.fork import fork_worker
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.slot import wait_for
from dlplacer.runtime.processes.worker import (
    ANSWERED,
    FAILED,
    FIRST_DONE,
    STARTED,
    WORDS_EACH,
    ProcessWorker,
    StepPrograms,
)
from dlplacer.runtime.processes.worker_handle import WorkerHandle, end_workers


class _Held(weakref.ref[Any]):
    """A weak reference to a state, with the number of what the workers keep for it."""

    __slots__ = ("number",)
    number: int


class DeviceProcesses:
    """One process for every device but the first, which the caller's process drives itself.

    Parameters
    ----------
    first, caller
        The first device, whose thread forks, and its name in the programs.
    away
        Name in the programs → device, for the others.

    Attributes
    ----------
    run
        Number of the last run.
    """

    def __init__(self, shared: StepPrograms, first: CpuDevice, caller: str, away: Mapping[str, CpuDevice]) -> None:
        self.slots = shared.slots
        self.run = 0
        self._held: dict[int, _Held] = {}
        self._dropped: list[_Held] = []
        self._words = shared.slots.memory.words
        self._workers: list[WorkerHandle] = []
        self._finalizer = weakref.finalize(self, end_workers, self._workers)
        try:
            for number, (name, device) in enumerate(away.items()):
                made = ProcessWorker(shared, name, caller, number, InlineDevice(device.name, device.type))
                with deferred_interrupts():
                    self._workers.append(WorkerHandle(device.name, *fork_worker(first, device.core, made.serve)))
            for worker in self._workers:
                worker.await_ready()
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

    def hold(self, state: object, number: int) -> None:
        """Have the workers drop what they keep under a number once nobody needs the state here, unless released before.

        By a callback that is not written in Python: a Ctrl-C that meets one which is gets lost.
        """
        held = _Held(state, self._dropped.append)
        held.number = number
        self._held[number] = held

    def release(self, number: int) -> None:
        """The workers keep nothing under this number any more."""
        self._held.pop(number, None)

    def start(self, asked: Mapping[str, Any]) -> None:
        """Have all workers run a program, whose number of the run is `run`; its inputs are in their slots."""
        # Finalizers add to the end of the list at any moment: what was lost here a worker would keep for ever.
        dropped = [held.number for held in self._dropped[:]]
        del self._dropped[: len(dropped)]
        for number in dropped:
            self.release(number)
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
        if any(worker.has_ended for worker in self._workers):
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
        for number, worker in enumerate(self._workers):
            place = FIRST_DONE + WORDS_EACH * number
            try:
                wait_for(self._words, place, self.run, partial(self._require_alive, worker))
                news = self._words[place + ANSWERED] == self.run
                answers[worker.device] = json.loads(worker.connection.recv_bytes()) if news else {}
            except (EOFError, OSError):
                self.fail()
                answers[worker.device] = {"gone": True}
        gone = [worker for worker in self._workers if "gone" in answers[worker.device]]
        if gone:
            self.close()
            raise RunError(f"the process of device {gone[0].device!r} {gone[0].ending}; the next step starts another")
        return answers

    def close(self) -> None:
        """End the workers."""
        with deferred_interrupts():
            self._finalizer()

    def _require_alive(self, worker: WorkerHandle) -> None:
        """Return while a worker is there; if another is gone, nobody waits for what that would have sent."""
        if any(each.has_ended for each in self._workers):
            self.fail()
        if worker.has_ended:
            raise EOFError
