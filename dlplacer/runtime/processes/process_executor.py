"""A step's programs on devices of several processes, from the side of the caller's process."""

import contextlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dlplacer.core.errors import RunError
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.devices.caller_thread import call_on_core, has_plain_modes
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.executor import Executor, StepState
from dlplacer.runtime.executor.hand_over import AbortedError
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.step_inputs import StepInputs
from dlplacer.runtime.processes.device_processes import DeviceProcesses
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.program_slots import ProgramSlots
from dlplacer.runtime.processes.result_slot import taken
from dlplacer.runtime.processes.shared_links import SharedLinks
from dlplacer.runtime.processes.shared_tensors import SharedHomes, SharedTensors
from dlplacer.runtime.processes.shared_updater import SharedUpdater
from dlplacer.runtime.processes.worker import FIRST_DONE, WORDS_EACH, StepPrograms, keep_values
from dlplacer.runtime.program.actions import Compute
from dlplacer.runtime.program.program import Program

_numbers = itertools.count(1)
_THE_SAME_EVERY_STEP = ("parameter", "buffer", "mutation", "constant")


@dataclass(frozen=True)
class ProcessPrograms:
    """The programs of a step, which run one after another, and the devices that are to be processes.

    Attributes
    ----------
    devices
        Name in the programs → device; the first runs in the caller's process.
    tensors
        The memory that the processes see.
    """

    graph: OpGraph
    executable: Executable
    programs: Sequence[Program]
    devices: Mapping[str, CpuDevice]
    updater: Updater
    tensors: SharedTensors

    def same_every_step(self, inputs: StepInputs) -> dict[str, torch.Tensor]:
        """Op → tensor that it brings in or writes to, for parameters, buffers and constants."""
        codes = self.executable.of_role(*_THE_SAME_EVERY_STEP)
        return {code.op: inputs.bound[code.op] for code in codes}


@dataclass(kw_only=True)
class ProcessState(StepState):
    """A step's state in the caller's process; what the workers hold has the same number there."""

    step: "ForkedStep"
    number: int
    seconds: float = 0.0


class ForkedStep:
    """A step's workers, and the part of its programs that runs in the caller's process.

    Parameters
    ----------
    inputs
        Of the first step: the workers know its parameters, buffers and constants.
    """

    def __init__(self, made: ProcessPrograms, inputs: StepInputs) -> None:
        self._made = made
        self._first, *self._away = made.devices
        self._lock = threading.RLock()
        words = FIRST_DONE + WORDS_EACH * len(self._away)
        bound = made.same_every_step(inputs)
        homes = SharedHomes(filter(made.tensors.holds, bound.values()))
        self._here = here = made.devices[self._first]
        slots = partial(ProgramSlots.of, made.graph, made.executable, made.programs, self._away, words, homes)
        # Made in none of the caller's modes: tensors of inference mode could never be written to outside of it.
        self._slots = slots() if has_plain_modes() else here.submit(slots).result()
        self._homes = {op: _home(tensor) for op, tensor in bound.items()}
        self._blocks = made.tensors.blocks_of(bound.values()) or []
        shared = StepPrograms(made.graph, made.executable, made.programs, made.updater, bound, self._slots)
        self.group = DeviceProcesses(shared, here, self._first, {name: made.devices[name] for name in self._away})
        self._links = SharedLinks(self._slots.crossing, self.group.watch, self.group.fail)
        # The caller's thread runs the first device's part itself: two threads would wake each other twice a program.
        own = {self._first: InlineDevice(here.name, here.type)}
        self._executors = [
            Executor(made.graph, made.executable, program, own, made.updater, self._links) for program in made.programs
        ]
        self._changed = [_changed_ops(made, program, self._away) for program in made.programs]

    def fits(self, inputs: StepInputs) -> bool:
        """Whether the workers see the tensors that a step is given: nobody has put others in their place."""
        bound = inputs.bound
        # Memory that was given back may lie at the same address again, for this process alone.
        if not all(block.is_used for block in self._blocks):
            return False
        return all(_home(bound[op]) == home for op, home in self._homes.items())

    def start(self, inputs: StepInputs, record: bool) -> ProcessState:
        """The state with which a step begins."""
        begun, number = self._executors[0].start(inputs, record), next(_numbers)
        state = ProcessState(**vars(begun), step=self, number=number)
        for name in self._away:
            state.values[name] = {}
            if state.timeline is not None:
                state.timeline[name] = DeviceTimeline()
        # A forward pass whose loss is dropped leaves values in the workers.
        self.group.hold(state, number)
        return state

    def run(self, number: int, state: ProcessState) -> None:
        """Run a program of the step on all devices, and wait for them.

        Raises
        ------
        RunError
            If an op fails, with its op, module and device, or a worker is gone.
        """
        with self._lock:
            if has_plain_modes():
                call_on_core(self._here.core, lambda: self._run(number, state))
                return
            try:
                self._here.submit(lambda: self._run(number, state)).result()
            except Exception:
                raise
            except BaseException:
                self.group.close()
                raise

    def _run(self, number: int, state: ProcessState) -> None:
        group = self.group
        if group.closed:
            raise RunError("a process of this step has ended, and with it what the forward pass kept; call it again")
        group.run += 1
        self._links.run = group.run
        try:
            self._begin(number, state)
            error = self._own_part(number, state)
            results = {} if error is not None else self._results(number)
            answers = group.finish()
            if error is not None:
                raise error
            self._take(number, state, results, answers)
        except Exception:
            raise
        except BaseException:
            group.close()
            raise

    def _begin(self, number: int, state: ProcessState) -> None:
        """Hand the workers their inputs and start them: what fails here fails before anyone was asked anything."""
        with torch.no_grad():
            for table in self._slots.inputs[number].values():
                for op, slot in table.items():
                    slot.put(state.inputs.bound[op], self.group.run)
        self.group.start(self._asked(number, state))

    def _own_part(self, number: int, state: ProcessState) -> Exception | None:
        """Run what is this process's; what has failed there."""
        try:
            self._executors[number].run(state)
        except Exception as error:
            self.group.fail()
            return error
        return None

    def _results(self, number: int) -> dict[str, dict[str, Any]]:
        """Device → what the caller gets from there, while the workers go on; without the rest if one has failed."""
        found: dict[str, dict[str, Any]] = {name: {} for name in self._slots.results[number]}
        with torch.no_grad(), contextlib.suppress(AbortedError):
            for name, slots in self._slots.results[number].items():
                for tensor, slot in slots.items():
                    found[name][tensor] = taken(slot, self.group.run, self.group.watch)
        return found

    def _asked(self, number: int, state: ProcessState) -> dict[str, Any]:
        asked: dict[str, Any] = {"program": number, "state": state.number}
        if used := self._slots.used_results(number):
            asked["used"] = used
        if number == 0:
            asked |= {"seed": state.inputs.seed, "step": state.inputs.step}
            if state.inputs.numbers:
                asked["numbers"] = dict(state.inputs.numbers)
            if state.timeline is not None:
                asked["record"] = True
        return asked

    def _take(
        self,
        number: int,
        state: ProcessState,
        results: Mapping[str, Mapping[str, Any]],
        answers: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """What the workers have made and answered into the state.

        Raises
        ------
        RunError
            What a worker has answered.
        """
        for answer in answers.values():
            if "error" in answer:
                raise RunError(answer["error"])
        for name in self._away:
            answer = answers[self._made.devices[name].name]
            if state.timeline is not None and "marks" in answer:
                marks, origins = answer["marks"], answer["origins"]
                state.timeline[name] = DeviceTimeline([*map(tuple, marks)], [*map(tuple, origins)])
            state.values[name].update(results[name])
        own = results.get(self._first, {})
        state.values[self._first].update(own)
        keep_values(state.values[self._first], self._slots, own)
        for op in self._changed[number]:
            # What a worker changes in place, autograd's counters here do not see.
            torch.autograd.graph.increment_version(state.inputs.bound[op])
        if isinstance(self._made.updater, SharedUpdater):
            self._made.updater.refresh()
        if number == len(self._executors) - 1:
            self.group.release(state.number)


class StepProcesses:
    """The workers of a step's programs, forked at the first step, and again once one of them was lost."""

    def __init__(self, made: ProcessPrograms) -> None:
        self._made = made
        # Reentrant: left taken by a Ctrl-C just before its release, it must not lock out the thread that has it.
        self._forking = threading.RLock()
        self._forked: ForkedStep | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers that there are."""
        return () if self._forked is None or self._forked.group.closed else self._forked.group.pids

    def fits(self, inputs: StepInputs) -> bool:
        """Whether the workers see the tensors that a step is given, or would see them if they were forked now."""
        if self._forked is not None and not self._forked.group.closed:
            return self._forked.fits(inputs)
        return self._made.tensors.blocks_of(self._made.same_every_step(inputs).values()) is not None

    def start(self, inputs: StepInputs, record: bool) -> ProcessState:
        """The state with which a step begins; forks the workers if there are none."""
        with self._forking:
            if self._forked is None or self._forked.group.closed:
                self._forked = ForkedStep(self._made, inputs)
            return self._forked.start(inputs, record)

    def release(self) -> None:
        """Use the workers no longer; they end once no step holds values there."""
        self._forked = None

    def close(self) -> None:
        """End the workers."""
        if self._forked is not None:
            self._forked.group.close()


def _home(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.stride()


def _changed_ops(made: ProcessPrograms, program: Program, away: Sequence[str]) -> list[str]:
    """Ops that bring in what the workers change in a program: buffers, and parameters with an update."""
    codes, producer = made.executable.codes, made.executable.producer
    computed = [codes[action.op] for name in away for action in program.actions[name] if isinstance(action, Compute)]
    updated = [producer[code.reads[0]] for code in computed if code.role == "update"]
    return [*(code.op for code in computed if code.role == "mutation"), *updated]
