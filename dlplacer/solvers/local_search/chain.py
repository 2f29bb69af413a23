"""One annealed solution: from a schedule to the tables of compiled code, and back."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dlplacer.problem.route_table import TimedRoute
from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, sequence
from dlplacer.solvers.instance.schedule_with_transfers import with_transfers
from dlplacer.solvers.local_search.arrays import OP_BYTES, READS, InstanceArrays, Ints
from dlplacer.solvers.local_search.kernels import (
    run_from,
    take_over,
)
from dlplacer.solvers.local_search.moves import anneal
from dlplacer.solvers.local_search.solution import (
    ARRIVAL_LEG,
    ASKS,
    BEGIN,
    DEVICE,
    NEVER,
    OVERFLOW,
    PLACE,
    PREVIOUS,
    REQUEST,
    SEGMENT,
    SEGMENT_LIMIT,
    SENT_LEG,
    TARGET,
    TRIAL,
    TRIAL_LEGS,
    TRIAL_SENT_EPOCH,
    TRIAL_START,
    Solution,
)
from dlplacer.solvers.local_search.turns import Turns, no_turns, turns_of

_FIRST_WIDTH = 64
"""Uses of a link direction for which tables have room at first."""


class Chain:
    """One annealed solution and the best one that it came by.

    Attributes
    ----------
    makespan
        Of the best solution, in ticks as the compiled code counts.
    """

    def __init__(
        self, instance: Instance, arrays: InstanceArrays, routes: Sequence[TimedRoute], devices: Ints, ops: Ints
    ) -> None:
        self._instance, self._arrays, self._routes = instance, arrays, routes
        self._device, self._sequence, self._turns = devices, ops, no_turns(instance, arrays)
        self._width = _FIRST_WIDTH
        self._kept = devices, ops, self._turns

    @classmethod
    def of(
        cls, instance: Instance, arrays: InstanceArrays, routes: Sequence[TimedRoute], schedule: Schedule
    ) -> "Chain":
        """A chain that begins with a schedule, run anew: with its transfers' own turns where these make it shorter."""
        ops = [op for op in sequence(instance, schedule.device, schedule.start) if op not in instance.sources]
        chain = cls(instance, arrays, routes, np.array(schedule.device, np.int64), np.array(ops, np.int64))
        chain._begin()
        if chain.makespan > schedule.makespan:
            without, before = chain._turns, chain.makespan
            chain._turns = turns_of(instance, arrays, routes, schedule, [int(op) for op in chain._sequence])
            chain._begin()
            if chain.makespan >= before:
                chain._turns = without
                chain._begin()
        return chain

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
        found, run, _ = anneal(
            self._arrays, self._solution, self._device, self._sequence, before, trials, temperature, seed
        )
        self.makespan = found
        if run < 0:
            self._width *= 2
            self._run()
        return found < before

    def schedule(self) -> Schedule:
        """The best solution as a schedule in exact ticks: compiled code takes the ticks of a route from a line."""
        instance = self._instance
        solution, _ = self.filled(self._run_all)
        assert instance.traffic is not None
        start = [int(begin) for begin in solution.ops[:, TRIAL_START]]
        devices = [int(device) for device in self._device]
        return with_transfers(instance, instance.traffic, devices, start, list(self.transfers(solution)))

    def transfers(self, solution: Solution) -> Iterator[ScheduledTransfer]:
        """The transfers of a trial of all."""
        traffic = self._instance.traffic
        assert traffic is not None
        rows = solution.legs[TRIAL, : solution.counts[TRIAL_LEGS]].tolist()
        route_of = np.searchsorted(self._arrays.segments_at, [row[SEGMENT] for row in rows], side="right") - 1
        starts: list[tuple[int, ...]] = []
        for leg, row in enumerate(rows):
            starts.append((*(starts[row[PREVIOUS]] if row[PREVIOUS] >= 0 else ()), row[BEGIN]))
            if row[SEGMENT] + 1 == row[SEGMENT_LIMIT]:
                hops = [segment.hops for segment in self._routes[route_of[leg]]]
                route = traffic.routes.along(hops, traffic.requests[row[REQUEST]].size)
                yield ScheduledTransfer(row[REQUEST], row[TARGET], route, starts[leg])

    def _run(self) -> int:
        """Run the best solution as the present one; its makespan."""
        self._solution, makespan = self.filled(self._run_all)
        take_over(self._arrays, self._solution, 0, makespan)
        return makespan

    def _run_all(self, solution: Solution) -> int:
        return run_from(self._arrays, solution, 0, NEVER)

    def filled(self, build: Callable[[Solution], int]) -> tuple[Solution, int]:
        """Tables with the trial of all that `build` makes, and its makespan; larger ones until they hold it."""
        while True:
            solution = _empty(self._instance, self._arrays, self._device, self._sequence, self._turns, self._width)
            makespan = build(solution)
            if not solution.counts[OVERFLOW]:
                return solution, makespan
            self._width *= 2


def _empty(instance: Instance, arrays: InstanceArrays, devices: Ints, ops: Ints, turns: Turns, width: int) -> Solution:
    """Tables for a solution that has not been run, with room for `width` uses of every link direction."""
    requests, resources = len(arrays.requests), instance.traffic.routes.resource_count if instance.traffic else 0
    table = np.zeros((instance.op_count, ASKS + 1), np.int64)
    table[:, DEVICE], table[:, PLACE], table[:, ASKS] = devices, -1, turns.asks
    table[ops, PLACE] = np.arange(len(ops))
    used = np.zeros(instance.device_count, np.int64)
    np.add.at(used, devices, arrays.ops[:, OP_BYTES])
    arrivals = np.zeros((requests, instance.device_count, TRIAL_SENT_EPOCH + 1), np.int64)
    arrivals[:, :, ARRIVAL_LEG] = arrivals[:, :, SENT_LEG] = -1
    most_legs = width * resources
    return Solution(
        table,
        ops.copy(),
        arrivals,
        np.zeros((2, most_legs, PREVIOUS + 1), np.int64),
        np.zeros((2, resources, width, 3), np.int64),
        np.zeros((resources, 3), np.int64),
        np.zeros(2 * most_legs + len(ops), np.int64),
        used,
        np.zeros(instance.device_count, np.int64),
        np.zeros(6, np.int64),
        turns.rows,
        turns.asker,
        np.zeros((1, int((arrays.ops[:, READS + 1] - arrays.ops[:, READS]).max(initial=0)), 2), np.int64),
    )
