"""A step's programs on devices of several processes: the interface of `Executor`, for the caller's process."""

import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dlplacer.core.errors import RunError
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.compile_program import StepInputs
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.executor import Executor, StepState
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.processes.program_slots import ProgramSlots
from dlplacer.runtime.processes.shared_links import SharedLinks
from dlplacer.runtime.processes.slot import own_copy
from dlplacer.runtime.processes.worker import FIRST_DONE, WORDS_EACH, StepPrograms, keep_values
from dlplacer.runtime.processes.worker_group import WorkerGroup
from dlplacer.runtime.program.program import Program

_numbers = itertools.count(1)
_THE_SAME_EVERY_STEP = ("parameter", "buffer", "mutation", "constant")


@dataclass
class ProcessState(StepState):
    """A step's state in the caller's process; what the workers hold has the same number there."""

    number: int = 0
    group: WorkerGroup | None = field(default=None, repr=False)
    finalizer: Any = field(default=None, repr=False)


class StepProcesses:
    """The workers of a step's programs, forked at the first step, and again once one of them was lost.

    Parameters
    ----------
    programs
        Those of a step, which run one after another.
    devices
        Name in the programs → device; the first runs in the caller's process.
    """

    def __init__(
        self,
        graph: OpGraph,
        executable: Executable,
        programs: Sequence[Program],
        devices: Mapping[str, CpuDevice],
        updater: Updater,
    ) -> None:
        self.graph, self.executable, self.programs, self.devices = graph, executable, programs, devices
        self.updater = updater
        self.first, *self.away = devices
        self.lock = threading.RLock()
        self.group: WorkerGroup | None = None
        self.links: SharedLinks | None = None
        self._executors: list[Executor] = []
        self._homes: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._codes = [code for code in executable.codes.values() if code.role in _THE_SAME_EVERY_STEP]

    def forked(self, inputs: StepInputs) -> WorkerGroup:
        """The workers; forked now if there are none."""
        if self.group is None or self.group.closed:
            words = FIRST_DONE + WORDS_EACH * len(self.away)
            slots = ProgramSlots.of(self.graph, self.executable, self.programs, self.away, words)
            bound = {code.op: inputs.bound[code.op] for code in self._codes}
            shared = StepPrograms(self.graph, self.executable, self.programs, self.updater, bound, slots)
            self._homes = {op: _home(tensor) for op, tensor in bound.items()}
            away = {name: self.devices[name] for name in self.away}
            self.group = WorkerGroup(shared, self.devices[self.first], away)
            self.links = SharedLinks(slots.crossing, self.group.watch, self.group.fail)
            here = {self.first: self.devices[self.first]}
            self._executors = [
                Executor(self.graph, self.executable, program, here, self.updater, self.links)
                for program in self.programs
            ]
        return self.group

    def fits(self, inputs: StepInputs) -> bool:
        """Whether the workers see the tensors that a step is given: nobody has put others in their place."""
        if self.group is None or self.group.closed:
            return True
        bound = inputs.bound
        return all(_home(bound[op]) == home for op, home in self._homes.items())

    def start(self, inputs: StepInputs, record: bool) -> ProcessState:
        """The state with which a step begins."""
        with self.lock:
            group = self.forked(inputs)
            begun = self._executors[0].start(inputs, record)
        state = ProcessState(begun.inputs, begun.values, begun.timeline, next(_numbers), group)
        for name in self.away:
            state.values[name] = {}
            if state.timeline is not None:
                state.timeline[name] = DeviceTimeline()
        state.finalizer = weakref.finalize(state, group.dropped.append, state.number)
        return state

    def run(self, number: int, state: ProcessState) -> None:
        """Run a program of the step on all devices, and wait for them.

        Raises
        ------
        RunError
            If an op fails, with its op, module and device, or a worker is gone.
        """
        with self.lock:
            group, links = self.group, self.links
            if group is None or links is None or state.group is not group or group.closed:
                raise RunError("a process of this step was lost, and with it what the forward pass has kept; call it again")
            group.run += 1
            links.run = run = group.run
            error: BaseException | None = None
            try:
                self._bring_in(group.slots, number, state, run)
                group.start(self._asked(number, state))
                self._executors[number].run(state)
            except Exception as raised:
                group.fail()
                error = raised
            except BaseException:
                group.close()
                raise
            try:
                self._take(group, number, state, group.finish(), error)
            except Exception:
                raise
            except BaseException:
                group.close()
                raise

    def close(self) -> None:
        """End the workers; the next step forks others."""
        group = self.group
        if group is not None:
            group.close()

    def _asked(self, number: int, state: ProcessState) -> dict[str, Any]:
        asked: dict[str, Any] = {"program": number, "state": state.number}
        if number == 0:
            asked |= {"seed": state.inputs.seed, "step": state.inputs.step}
            if state.inputs.numbers:
                asked["numbers"] = dict(state.inputs.numbers)
            if state.timeline is not None:
                asked["record"] = True
        return asked

    def _bring_in(self, slots: ProgramSlots, number: int, state: ProcessState, run: int) -> None:
        with torch.no_grad():
            for table in slots.inputs[number].values():
                for op, slot in table.items():
                    slot.put(state.inputs.bound[op], run)

    def _take(
        self,
        group: WorkerGroup,
        number: int,
        state: ProcessState,
        answers: Mapping[str, Mapping[str, Any]],
        error: BaseException | None,
    ) -> None:
        """What the workers have answered into the state, or the error of the run."""
        if error is not None:
            raise error
        for answer in answers.values():
            if "error" in answer:
                raise RunError(answer["error"])
        last = number == len(self.programs) - 1
        for name in self.away:
            answer = answers[self.devices[name].name]
            if state.timeline is not None and "marks" in answer:
                state.timeline[name] = DeviceTimeline(
                    [tuple(mark) for mark in answer["marks"]], [tuple(origin) for origin in answer["origins"]]
                )
            for tensor, slot in group.slots.results[number][name].items():
                value = slot.get(group.run, group.watch)
                # The caller's own: the next step writes where it lies.
                state.values[name][tensor] = None if value is None else own_copy(value)
        if self.group is not None:
            keep_values(state.values[self.first], group.slots)
        if last:
            state.finalizer.detach()
            state.group = None


def _home(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.stride()


class ProcessExecutor:
    """One program of a step in its processes; see `Executor`."""

    def __init__(self, processes: StepProcesses, number: int) -> None:
        self.processes = processes
        self._number = number

    def start(self, inputs: StepInputs, record: bool = False) -> ProcessState:
        """The state with which a step begins."""
        return self.processes.start(inputs, record)

    def run(self, state: StepState) -> None:
        """Run the program and wait for all devices."""
        assert isinstance(state, ProcessState)
        self.processes.run(self._number, state)
