"""A step's programs by threads or by processes, as is chosen step by step."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlplacer.core.errors import RunError
from dlplacer.runtime.executor.executor import Executor, StepState
from dlplacer.runtime.executor.step_inputs import StepInputs
from dlplacer.runtime.processes.process_choice import ProcessChoice, ProcessTrial
from dlplacer.runtime.processes.process_executor import ProcessState, StepProcesses

_REPLACED = "a parameter or buffer lies in other memory than when its processes were made (p.data = …)"


@dataclass
class ThreadState(StepState):
    """A step's state where all devices are threads.

    Attributes
    ----------
    seconds
        What its programs have taken so far.
    """

    seconds: float = 0.0


class ChosenStep:
    """The programs of a step, each of which runs where its step has begun."""

    def __init__(self, threads: Sequence[Executor], processes: StepProcesses, trial: ProcessTrial) -> None:
        self._threads, self._processes, self._trial = threads, processes, trial
        self._fits = True

    @property
    def executors(self) -> tuple["ChosenExecutor", ...]:
        """One for each program. They hold the step and it does not hold them: its workers end with the last of them."""
        return tuple(ChosenExecutor(self, number) for number in range(len(self._threads)))

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers that there are."""
        return self._processes.pids

    @property
    def choice(self) -> ProcessChoice:
        """What is chosen so far; threads for steps whose tensors the workers cannot see."""
        chosen = self._trial.choice
        return chosen if self._fits or chosen.used is False else replace(chosen, used=False, reason=_REPLACED)

    @property
    def by_turns(self) -> bool:
        """Whether the devices are threads that take turns."""
        return not self.choice.used and bool(self._threads[0].by_turns)

    def start(self, inputs: StepInputs, record: bool) -> StepState:
        """The state with which a step begins, by threads or by processes."""
        self._fits = not self._trial.wants_processes or self._processes.fits(inputs)
        if self._trial.wants_processes and self._fits:
            try:
                return self._processes.start(inputs, record)
            except (RunError, OSError) as error:
                if self._trial.choice.wanted == "on":
                    raise
                self._trial.give_up(str(error))
        return ThreadState(**vars(self._threads[0].start(inputs, record)))

    def run(self, number: int, state: StepState) -> None:
        """Run a program of the step."""
        begin = time.perf_counter()
        if isinstance(state, ProcessState):
            state.step.run(number, state)
        else:
            self._threads[number].run(state)
        if self._trial.choice.used is not None:
            return
        assert isinstance(state, (ThreadState, ProcessState))
        state.seconds += time.perf_counter() - begin
        # Threads find out by themselves whether they take turns; processes are compared with what they have found.
        settled = isinstance(state, ProcessState) or all(threads.by_turns is not None for threads in self._threads)
        if settled and number == len(self._threads) - 1:
            self._trial.took(isinstance(state, ProcessState), state.seconds)
            if self._trial.choice.used is False:
                self._processes.release()

    def close(self) -> None:
        """End the processes; a later step forks others."""
        self._processes.close()


class ChosenExecutor:
    """One of the programs; see `Executor`."""

    def __init__(self, step: ChosenStep, number: int) -> None:
        self._step, self._number = step, number

    def start(self, inputs: StepInputs, record: bool = False) -> StepState:
        """The state with which a step begins."""
        return self._step.start(inputs, record)

    def run(self, state: StepState) -> None:
        """Run the program and wait for all devices."""
        self._step.run(self._number, state)
