"""One annealed solution: from a schedule to the tables of compiled code, and back."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dlplacer.problem.transfers import ScheduledTransfer, TimedRoute
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, sequence
from dlplacer.solvers.instance.schedule_with_transfers import with_transfers
from dlplacer.solvers.local_search.arrays import InstanceArrays, Ints
from dlplacer.solvers.local_search.kernels import (
    ARRIVAL_LEG,
    BEGIN,
    DEVICE,
    NEVER,
    OVERFLOW,
    PATH_BEFORE,
    PLACE,
    REQUEST,
    SEGMENT,
    TARGET,
    TRIAL,
    TRIAL_LEGS,
    TRIAL_START,
    Solution,
    run_from,
    take_over,
)
from dlplacer.solvers.local_search.moves import anneal

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
        self._device, self._sequence = devices, ops
        self._width = _FIRST_WIDTH
        self._kept = devices, ops

    @classmethod
    def of(
        cls, instance: Instance, arrays: InstanceArrays, routes: Sequence[TimedRoute], schedule: Schedule
    ) -> "Chain":
        """A chain that begins with a schedule, run anew."""
        by_start = sequence(instance, schedule.device, schedule.start)
        ops = np.array([op for op in by_start if op not in instance.sources], np.int64)
        chain = cls(instance, arrays, routes, np.array(schedule.device, np.int64), ops)
        chain.begin(chain._run_all)
        return chain

    def begin(self, build: Callable[[Solution], int]) -> bool:
        """Begin with what `build` makes of tables, as a trial, out of the sequence; whether it makes anything.

        Parameters
        ----------
        build
            Returns the makespan, or `NEVER` if there is no solution.
        """
        self._solution, self.makespan = self._tables(build)
        if self.makespan == NEVER:
            return False
        self._device = self._solution.ops[:, DEVICE].copy()
        self._kept = self._device.copy(), self._sequence.copy()
        take_over(self._arrays, self._solution, 0, self.makespan)
        return True

    def go_on_from(self, other: "Chain") -> None:
        """Take the best solution of another chain, or of this one, as the present one."""
        self._device, self._sequence = other._device.copy(), other._sequence.copy()
        self.makespan = self._run()

    def keep(self, admitted: bool) -> None:
        """Hear whether the best solution was a plan; if not, go back to the last one that was."""
        if admitted:
            self._kept = self._device.copy(), self._sequence.copy()
        else:
            self._device, self._sequence = self._kept[0].copy(), self._kept[1].copy()
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
        solution, _ = self._tables(self._run_all)
        assert instance.traffic is not None
        start = [int(begin) for begin in solution.ops[:, TRIAL_START]]
        devices = [int(device) for device in self._device]
        return with_transfers(instance, instance.traffic, devices, start, list(self._transfers(solution)))

    def _transfers(self, solution: Solution) -> Iterator[ScheduledTransfer]:
        traffic = self._instance.traffic
        assert traffic is not None
        rows = solution.legs[TRIAL, : solution.counts[TRIAL_LEGS]].tolist()
        route_of = np.searchsorted(self._arrays.segments_at, [row[SEGMENT] for row in rows], side="right") - 1
        leg = 0
        while leg < len(rows):
            request, target = rows[leg][REQUEST], rows[leg][TARGET]
            hops = [segment.hops for segment in self._routes[route_of[leg]]]
            starts = tuple(row[BEGIN] for row in rows[leg : leg + len(hops)])
            route = traffic.routes.along(hops, traffic.requests[request].size)
            yield ScheduledTransfer(request, target, route, starts)
            leg += len(hops)

    def _run(self) -> int:
        """Run the best solution as the present one; its makespan."""
        self._solution, makespan = self._tables(self._run_all)
        take_over(self._arrays, self._solution, 0, makespan)
        return makespan

    def _run_all(self, solution: Solution) -> int:
        return run_from(self._arrays, solution, 0, NEVER)

    def _tables(self, build: Callable[[Solution], int]) -> tuple[Solution, int]:
        """Tables with a trial of all, and its makespan; larger ones until they hold it."""
        while True:
            solution = _empty(self._instance, self._arrays, self._device, self._sequence, self._width)
            makespan = build(solution)
            if not solution.counts[OVERFLOW]:
                return solution, makespan
            self._width *= 2


def _empty(instance: Instance, arrays: InstanceArrays, devices: Ints, ops: Ints, width: int) -> Solution:
    """Tables for a solution that has not been run, with room for `width` uses of every link direction."""
    requests, resources = len(arrays.requests), instance.traffic.routes.resource_count if instance.traffic else 0
    table = np.zeros((instance.op_count, PATH_BEFORE + 1), np.int64)
    table[:, DEVICE], table[:, PLACE] = devices, -1
    table[ops, PLACE] = np.arange(len(ops))
    used = np.zeros(instance.device_count, np.int64)
    for size, first, _ in arrays.units:
        used[devices[arrays.lists[first]]] += size
    arrivals = np.zeros((requests, instance.device_count, 5), np.int64)
    arrivals[:, :, ARRIVAL_LEG] = -1
    most_legs = width * resources
    return Solution(
        table,
        ops.copy(),
        arrivals,
        np.zeros((2, most_legs, 6), np.int64),
        np.zeros((2, resources, width, 3), np.int64),
        np.zeros((resources, 3), np.int64),
        np.zeros(2 * most_legs + len(ops), np.int64),
        used,
        np.zeros(instance.device_count, np.int64),
        np.zeros(6, np.int64),
    )
