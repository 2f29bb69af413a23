"""One annealed solution: from a schedule to tables, and back."""

import numpy as np

from dlplacer.solvers.decode.arrays import Tables
from dlplacer.solvers.decode.machine_code import machine_code
from dlplacer.solvers.decode.runs import run_from, take_over
from dlplacer.solvers.decode.solution import NEVER, TRIAL_START, Solution, filled, transfers, width_of
from dlplacer.solvers.decode.turns import no_turns, turns_of
from dlplacer.solvers.instance.schedule import Schedule, sequence
from dlplacer.solvers.instance.schedule_with_transfers import with_transfers
from dlplacer.solvers.local_search.moves import anneal


class Chain:
    """One annealed solution and the best one that it came by.

    Attributes
    ----------
    makespan
        Of the best solution, in ticks as kernels count.
    """

    def __init__(self, tables: Tables, schedule: Schedule) -> None:
        """Begin with a schedule, run anew: with its transfers' own turns where these make it shorter."""
        ops = sequence(tables.instance, schedule.device, schedule.start)
        self._tables, self._width = tables, 0
        self._device = np.array(schedule.device, np.int64)
        self._sequence = np.array([op for op in ops if op not in tables.instance.sources], np.int64)
        self._turns = no_turns(tables.arrays)
        self._begin()
        if self.makespan > schedule.makespan:
            without, before = self._turns, self.makespan
            self._turns = turns_of(tables, schedule, self._sequence.tolist())
            self._begin()
            if self.makespan >= before:
                self._turns = without
                self._begin()

    def _begin(self) -> None:
        self._kept = self._device.copy(), self._sequence.copy(), self._turns
        self.makespan = self._run()

    def go_on_from(self, other: "Chain") -> None:
        """Take the best solution of another chain, or of this one, as the present one."""
        self._device, self._sequence, self._turns = other._device.copy(), other._sequence.copy(), other._turns
        self.makespan = self._run()

    def keep(self, admitted: bool) -> None:
        """Hear whether the best solution was a plan; if not, go back to the last one that was."""
        if admitted:
            self._kept = self._device.copy(), self._sequence.copy(), self._turns
        else:
            devices, ops, self._turns = self._kept
            self._device, self._sequence = devices.copy(), ops.copy()
            self.makespan = self._run()

    def go_on(self, trials: int, temperature: float, seed: int) -> bool:
        """Try so many moves; whether something better was found."""
        before = self.makespan
        found, tried, _ = machine_code(anneal)(
            self._tables.arrays, self._solution, self._device, self._sequence, before, trials, temperature, seed
        )
        self.makespan = found
        if tried < 0:
            self._width = 2 * width_of(self._solution)
            self._run()
        return found < before

    def schedule(self) -> Schedule:
        """The best solution as a schedule in exact ticks: kernels take the ticks of a route from a line."""
        instance = self._tables.instance
        solution, _ = self._filled()
        assert instance.traffic is not None
        start, devices = solution.ops[:, TRIAL_START].tolist(), self._device.tolist()
        return with_transfers(instance, instance.traffic, devices, start, list(transfers(self._tables, solution)))

    def _run(self) -> int:
        """Run the best solution as the present one; its makespan."""
        self._solution, makespan = self._filled()
        machine_code(take_over)(self._tables.arrays, self._solution, 0, makespan)
        return makespan

    def _filled(self) -> tuple[Solution, int]:
        def run_all(solution: Solution) -> int:
            return machine_code(run_from)(self._tables.arrays, solution, 0, NEVER)

        return filled(self._tables, self._device, self._sequence, self._turns, run_all, self._width)
