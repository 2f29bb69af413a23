"""The solver for objectives throughput and max-load: it minimises the largest load, and proves a bound on this load.

A list schedule and contiguous runs come first. CP-SAT improves the best one, also on surrogates if memory is short.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dlplacer.core.errors import InternalError
from dlplacer.problem.live_memory import may_bind
from dlplacer.problem.problem import Problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.bounds import whole_area
from dlplacer.solvers.feasibility import explain_infeasible
from dlplacer.solvers.heuristics.contiguous import (
    Floats,
    alike_devices,
    best_runs,
    runs_within,
    set_count,
    units_in_order,
)
from dlplacer.solvers.heuristics.list_rules import construct, list_schedule
from dlplacer.solvers.ilp.assignment_model import AssignmentModel
from dlplacer.solvers.ilp.constraints import Literal
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, search
from dlplacer.solvers.instance.instance import FAR, Instance, build_instance
from dlplacer.solvers.instance.memory_admission import excess_bytes, tightened
from dlplacer.solvers.instance.placement_loads import Ints, PlacementLoads, loads_of
from dlplacer.solvers.instance.schedule import Budget, Incumbent, Outcome, ProblemSchedule, Schedule, SchedulesOnly
from dlplacer.solvers.instance.time_limit import within

_MOST_UNITS, _SWEEPS, _MOST_STATES = 2000, 20, 64
"""Most units into which blocks are merged; sweeps over backward blocks; most sets of devices for exact runs."""

_WHOLE_SHARE, _SURROGATE_SHARE, _ROUNDS = 0.6, 0.3, 6
"""If memory may be short: share of the time left for the problem itself, which alone gives a bound; share for each
surrogate; number of surrogates. Guesses."""


def solve_throughput(problem: Problem, budget: Budget) -> Outcome:
    """The schedule of least period found, and a period in ticks that no plan beats; InfeasibleError without a plan."""
    steady = _Search(problem, budget)
    best = steady.incumbent
    within(lambda: best.best is not None and not budget.left_s, steady.run)
    return Outcome(None if best.best is None else steady.scheduled(best.best.device), best.bound)


class _Search:
    """The search. Its incumbent's schedules stand for placements: their makespan is the period, all starts are 0."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.problem, self.instance = problem, build_instance(problem)
        self.loads = loads_of(problem, self.instance)
        self.excess: list[int] = []
        self.incumbent = Incumbent(budget, self._keeps_memory)
        self.incumbent.raise_bound(whole_area(self.instance))

    def run(self) -> None:
        """Start with a list schedule and contiguous runs; search the instance, and surrogates if memory is short."""
        first = construct(self.instance, list_schedule)
        if first is not None:
            self.incumbent.offer(self._placed([first.device[ops[0]] for ops in self.instance.members]))
        for units in block_orders(self.problem, self.instance, self.loads):
            if (found := contiguous_loads(self.instance, self.loads, units)) is not None:
                self.incumbent.offer(self._placed(found))
        is_short = may_bind(self.problem)
        self._improve(self.instance, _WHOLE_SHARE if is_short else 1.0, self.incumbent)
        if is_short and not self.incumbent.closed:
            self._up_to_a_plan()

    def scheduled(self, device: Sequence[int]) -> ProblemSchedule:
        """The list schedule of a placement, [op] → device; its order decides the makespan and memory over time."""
        count = self.problem.op_count
        found = construct(self.instance, list_schedule, [device[ops[0]] for ops in self.instance.members])
        if found is None:
            raise InternalError("a placement within memory has no list schedule; please report this graph and topology")
        return ProblemSchedule(self.problem, found.device[:count], found.start[:count])

    def _placed(self, place: Sequence[int]) -> Schedule:
        device = tuple(place[block] for block in self.instance.block)
        return Schedule(device, (0,) * len(device), max(self.loads.of(place)))

    def _keeps_memory(self, schedule: Schedule) -> bool:
        """True if a step with this placement fits in memory at all times; `excess` gets [device] → bytes too many."""
        plan = self.scheduled(schedule.device)
        self.excess = excess_bytes(self.problem, *replay(self.problem, plan.device, plan.order))
        return not any(self.excess)

    def _up_to_a_plan(self) -> None:
        """Search a surrogate, and tighten it by the excess of the placement found, until a placement fits in memory."""
        surrogate, until = self.instance, _ROUNDS
        while until and self.incumbent.budget.left_s:
            self.excess, until = [], until - 1
            place = self._improve(surrogate, _SURROGATE_SHARE, SchedulesOnly(self.incumbent))
            if place is None or not any(self.excess):
                return
            surrogate = tightened(surrogate, place, self.excess)

    def _improve(self, instance: Instance, share: float, incumbent: Incumbent) -> list[int] | None:
        """[block] → device of the last placement that CP-SAT finds in a share of the time; None if it finds none."""
        best, bound = self.incumbent.best, self.incumbent.bound
        most = self.problem.horizon if best is None else best.makespan
        model = AssignmentModel(self.problem, instance, self.loads, bound, max(most, bound))
        if best is not None:
            model.hint([best.device[ops[0]] for ops in instance.members], most)
        last: list[int] = []

        def read(is_true: Callable[[Literal], bool], _value: object) -> list[Schedule]:
            last[:] = model.read(is_true)
            return [self._placed(last)]

        end = search(model.model, read, incumbent, share * incumbent.budget.left_s, relaxes_well=True)
        if end is SearchEnd.INFEASIBLE and instance is self.instance and best is None:
            raise explain_infeasible(self.problem)
        return last or None


def block_orders(problem: Problem, instance: Instance, loads: PlacementLoads) -> Iterator[list[list[int]]]:
    """Orders of all blocks, in units: the topological one; then one with each backward block at its first neighbour."""
    units = units_in_order(instance, _MOST_UNITS)
    yield units
    near: list[set[int]] = [set() for _ in instance.members]
    for source, readers, _ in loads.requests:
        for reader in readers:
            near[source].add(reader)
            near[reader].add(source)
    # Positions beyond the graph's ops belong to the barrier.
    phases = [op.phase for op in problem.graph.ops] + [None]
    later = [all(phases[op] in ("backward", "optimizer") for op in ops) for ops in instance.members]
    order = dict.fromkeys(instance.block[op] for op in instance.order)
    moving = [block for block in reversed(order) if later[block] and near[block]]
    if not moving:
        return
    position = np.zeros(len(near))
    for number, unit in enumerate(units):
        position[unit] = number
    for sweep in range(_SWEEPS):
        for block in moving if sweep % 2 else reversed(moving):
            position[block] = min(position[other] for other in near[block])
    blocks = np.argsort(position, kind="stable").tolist()
    size = -(-len(blocks) // _MOST_UNITS)
    yield [blocks[begin : begin + size] for begin in range(0, len(blocks), size)]


def contiguous_loads(instance: Instance, loads: PlacementLoads, units: Sequence[list[int]]) -> list[int] | None:
    """[block] → device, with one run of units per device and the least largest load; None if no runs fit.

    The result is exact up to `_MOST_STATES` sets of devices. With more, the devices keep their order.
    """
    rooms = [math.inf if room is None else float(room) for room in instance.capacity]
    may_run = np.zeros(loads.work.shape, bool)
    for block, ops in enumerate(instance.members):
        may_run[block, list(instance.allowed[ops[0]])] = True
    time = np.where(may_run, loads.work, np.inf)
    groups = alike_devices(rooms, time, np.concatenate([loads.sent, loads.received]))
    in_order = set_count(groups) > _MOST_STATES
    groups = [[device] for device in range(len(rooms))] if in_order else groups
    costs = [_run_costs(instance, loads, units, group[0], time[:, group[0]]) for group in groups]
    runs = best_runs(groups, costs, join=np.maximum, in_order=in_order)
    if runs is None:
        return None
    place = [0] * len(instance.members)
    for device, first, last in runs:
        for block in (block for unit in units[first:last] for block in unit):
            place[block] = device
    return place


def _run_costs(
    instance: Instance, loads: PlacementLoads, units: Sequence[list[int]], device: int, time: Floats
) -> Floats:
    """[begin, end] → ticks of a run of units on a device, infinite if it does not fit or may not run there."""
    home = np.zeros(len(instance.members), np.int64)
    for number, unit in enumerate(units):
        home[unit] = number
    size = np.cumsum([0, *(sum(instance.footprint[block] for block in unit) for unit in units)])
    room = instance.capacity[device]
    runs = runs_within(
        np.array([time[unit].sum() for unit in units]),
        (size[None, :] - size[:, None]).astype(float),
        np.inf if room is None else room,
    )
    return runs + _crossing_costs(loads, home, len(units), device)


def _crossing_costs(loads: PlacementLoads, home: Ints, count: int, device: int) -> Floats:
    """[begin, end] → the most ticks that a device pays for a run's transfers, by cumulative sums of differences."""
    steps = np.zeros((count + 2, count + 2))
    both = loads.sent[:, device], loads.received[:, :, device]
    sending, receiving = (np.where(table >= FAR, 0, table).max(axis=1) for table in both)

    def add(first: int, last: int, end: int, ticks: float) -> None:
        """Add ticks to the runs that begin at `first` to `last` and end after `end`."""
        if first <= last:
            steps[first, end + 1] += ticks
            steps[last + 1, end + 1] -= ticks

    for block, reading, kind in loads.requests:
        source, sent, received = int(home[block]), float(sending[kind]), float(receiving[kind])
        readers = sorted({int(home[reader]) for reader in reading})
        add(0, source, source, sent)
        add(0, min(source, readers[0]), max(source, readers[-1]), -sent)
        before = -1
        for reader in readers:
            add(before + 1, reader, reader, received)
            add(before + 1, min(reader, source), max(reader, source), -received)
            before = reader
    return steps.cumsum(axis=0).cumsum(axis=1)[: count + 1, : count + 1]
