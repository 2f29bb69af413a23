"""A worker process: runs one device's part of the programs of a step whenever the caller's process asks."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any

import torch

from dlplacer.core.errors import RunError
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.executor.executor import Executor, StepState
from dlplacer.runtime.executor.hand_over import AbortedError
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.step_inputs import StepInputs
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.program_slots import ProgramSlots, with_results_sent
from dlplacer.runtime.processes.shared_links import SharedLinks
from dlplacer.runtime.processes.slot import SPINS, own_copy
from dlplacer.runtime.program.program import Program

STARTED, FAILED, FIRST_DONE = 0, 8, 16
"""Words at the beginning of the shared memory, each on a cache line of its own: the last run that was started, the last
that has failed, and from `FIRST_DONE` the last run that each worker has ended."""
WORDS_EACH = 16
ANSWERED = 8
"""Behind a worker's word of `FIRST_DONE`: the last run to which it sends an answer. To a run that went well and was not
recorded it sends none: reading one took the caller 0.1 ms."""
READY = b"{}"


@dataclass(frozen=True)
class StepPrograms:
    """What a step's processes have in common, made before they part.

    Attributes
    ----------
    bound
        Op id → tensor, for all that is the same in every step: parameters, buffers and constants.
    """

    graph: OpGraph
    executable: Executable
    programs: Sequence[Program]
    updater: Updater
    bound: Mapping[str, Any]
    slots: ProgramSlots


class ProcessWorker:
    """One device in its own process.

    Parameters
    ----------
    name, caller
        Of the device in the programs, and of the caller's.
    number
        Of this worker among those of its step.
    """

    def __init__(self, shared: StepPrograms, name: str, caller: str, number: int, device: InlineDevice) -> None:
        self._name = name
        self._slots = shared.slots
        self._words = shared.slots.memory.words
        self._done = FIRST_DONE + WORDS_EACH * number
        self._bound = shared.bound
        self._links = SharedLinks(shared.slots.crossing, self._watch, self._fail, shared.slots.results_of(name))
        programs = [
            with_results_sent(program, name, results[name], shared.executable, caller)
            for program, results in zip(shared.programs, shared.slots.results, strict=True)
        ]
        self._executors = [
            Executor(shared.graph, shared.executable, program, {name: device}, shared.updater, self._links)
            for program in programs
        ]
        self._device = device
        self._states: dict[int, StepState] = {}

    def serve(self, connection: Connection) -> None:
        """Run what is asked for until the other end closes."""
        connection.send_bytes(READY)
        while True:
            self._spin()
            try:
                asked = json.loads(connection.recv_bytes())
            except EOFError:
                return
            answer = self._answer(asked)
            # First the words: a long answer is sent no sooner than it is read.
            if answer is not None:
                self._words[self._done + ANSWERED] = asked["run"]
            self._words[self._done] = asked["run"]
            if answer is not None:
                connection.send_bytes(answer)

    def _spin(self) -> None:
        """Until the next run has begun, but for a short while: an idle model takes no core."""
        words, ended = self._words, self._links.run
        for _ in repeat(None, SPINS):
            if words[STARTED] > ended:
                return

    def _answer(self, asked: Mapping[str, Any]) -> bytes | None:
        for dropped in asked.get("drop", ()):
            self._states.pop(dropped, None)
        self._links.run = asked["run"]
        try:
            state = self._run(asked)
        except Exception as error:
            self._states.pop(asked["state"], None)
            self._fail()
            text = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            return json.dumps({"aborted": True} if isinstance(error, AbortedError) else {"error": text}).encode()
        if state.timeline is None:
            return None
        timeline = state.timeline[self._name]
        return json.dumps({"marks": timeline.marks, "origins": timeline._origins}).encode()

    def _run(self, asked: Mapping[str, Any]) -> StepState:
        number, run = asked["program"], asked["run"]
        self._slots.note_used(number, asked.get("used", ()))
        executor = self._executors[number]
        arrived = {op: slot.get(run, self._watch) for op, slot in self._slots.inputs[number][self._name].items()}
        if number == 0:
            inputs = StepInputs({**self._bound, **arrived}, asked["seed"], asked["step"], asked.get("numbers", {}))
            state: StepState = executor.start(inputs, asked.get("record", False))
        else:
            state = self._states[asked["state"]]
            state.inputs = replace(state.inputs, bound={**state.inputs.bound, **arrived})
        executor.run(state)
        if self._words[FAILED] == run:
            raise AbortedError
        values = state.values[self._name]
        # Most have been sent when they were made.
        for name, slot in self._slots.results[number][self._name].items():
            slot.put(values[name], run)
        if number == len(self._executors) - 1:
            self._states.pop(asked["state"], None)
        else:
            keep_values(values, self._slots)
            self._states[asked["state"]] = state
        return state

    def _watch(self) -> None:
        if self._words[FAILED] == self._links.run:
            raise AbortedError

    def _fail(self) -> None:
        self._words[FAILED] = self._links.run


def keep_values(values: dict[str, Any], slots: ProgramSlots, lent: Collection[str] = ()) -> None:
    """Replace what lies in slots, or is a view of it, by copies: the next run of the programs writes there.

    Parameters
    ----------
    lent
        Values that no run writes to while they are used.
    """
    holds = slots.memory.holds
    for name, value in values.items():
        if name not in lent and isinstance(value, torch.Tensor) and holds(value):
            values[name] = own_copy(value)
