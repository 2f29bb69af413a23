"""The whole ILP of an instance; for small problems the exact model with transfers, routes and memory over time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import gcd

from ortools.sat.python import cp_model

from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import Traffic
from dlplacer.solvers.bounds import Bounds
from dlplacer.solvers.ilp import constraints
from dlplacer.solvers.ilp import transfer_constraints as transfers
from dlplacer.solvers.ilp.assignment_model import leave_working_room
from dlplacer.solvers.ilp.constraints import (
    Linear,
    Literal,
    OptionalTransfer,
    Variables,
    create_variables,
    duration,
    hint,
)
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, no_schedule_error, reader, search
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, SchedulesOnly
from dlplacer.solvers.instance.time_limit import ask_time, now


def build_model(
    instance: Instance,
    bounds: Bounds,
    upper: int,
    start_from: Schedule | None = None,
    every_route: bool = False,
) -> tuple[cp_model.CpModel, Variables]:
    """The model of all schedules of at most `upper` ticks, with all routes if `every_route`; `start_from` is a hint."""
    model = cp_model.CpModel()
    variables = create_variables(model, instance, bounds, upper)
    constraints.place_every_op(model, instance, variables)
    constraints.join_communicating_ops(model, instance, variables)
    constraints.respect_precedence(model, instance, variables, bounds, upper)
    constraints.run_one_op_at_a_time(model, instance, variables)
    constraints.fit_into_memory(model, instance, variables)
    constraints.finish_before_makespan(model, instance, variables, bounds)
    constraints.bound_loads(model, instance, variables, bounds)
    if instance.traffic is not None:
        transfers.add_transfers(model, instance, instance.traffic, variables, bounds, upper, every_route)
        transfers.one_transfer_at_a_time(model, variables)
    constraints.minimize_makespan(model, variables)
    if start_from is not None:
        constraints.break_symmetry(model, instance, variables, start_from.device)
        hint(model, instance, variables, start_from.device, start_from.start)
        if instance.traffic is not None:
            transfers.hint_transfers(model, instance.traffic, variables, start_from)
    return model, variables


_Moment = cp_model.LinearExprT
Shelf = list[tuple[cp_model.IntervalVar, int]]
"""The possible tensors on a device: intervals, and bytes while they last."""


def fit_into_memory_at_all_times(
    model: cp_model.CpModel, problem: Problem, instance: Instance, traffic: Traffic, variables: Variables, upper: int
) -> None:
    """Eq. 13 over time. Transfers must be part of the model, and the instance must have no `sources` or `sinks`."""
    store = _Store(model, problem, instance, variables, upper)
    for block, size in enumerate(instance.footprint):
        for device, here in variables.place[block].items():
            store.put(device, size, 0, upper, here)
    for op in range(problem.op_count):
        ask_time()
        store.op(op, traffic)
    for optional in variables.optional_transfers:
        ask_time()
        store.optional(optional, traffic)
    for shelf, capacity in zip(store.shelves, instance.capacity, strict=True):
        sizes = [size for _, size in shelf]
        if capacity is not None and sum(sizes) > capacity:
            unit = gcd(*sizes)
            intervals = [interval for interval, _ in shelf]
            model.add_cumulative(intervals, [size // unit for size in sizes], capacity // unit)


class _Store:
    """The tensors on every device, each from its first tick to the last of several possible ends."""

    def __init__(
        self, model: cp_model.CpModel, problem: Problem, instance: Instance, variables: Variables, upper: int
    ) -> None:
        self.model, self.problem, self.instance = model, problem, instance
        self.variables, self.upper = variables, upper
        self.shelves: list[Shelf] = [[] for _ in instance.capacity]
        self.readers: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.output_of: dict[str, int] = {}
        for edge, arc in zip(problem.graph.edges, problem.arcs, strict=True):
            self.readers[arc.source, edge.output].append(arc.target)
            self.output_of[edge.tensor] = edge.output

    def op(self, op: int, traffic: Traffic) -> None:
        """Add each output, from the op's start to its last reader or transfer, and workspace while it runs."""
        start, end = self.variables.start[op], self._end(op)
        sent = ((one, traffic.requests[one.request]) for one in self.variables.optional_transfers)
        leaving = [(one, self.output_of[request.tensor]) for one, request in sent if request.source == op]
        for device, here in self.variables.place[self.instance.block[op]].items():
            # An interval's end must be affine in one variable, which the op's end is not if its time depends on the
            # device; but this interval exists on this device only.
            self.put(device, self.problem.workspace_bytes[op], start, start + self.instance.duration[op][device], here)
            for part in self.problem.graph.output_parts.get(self.problem.graph.ops[op].id, ()):
                readers = [reader for output in part.outputs for reader in self.readers[op, output]]
                until = self._until(end, here, readers, device)
                for one, output in leaving:
                    if one.source == device and output in part.outputs:
                        self.model.add(until >= one.start[0] + one.route[0].ticks).only_enforce_if(one.used)
                self.put(device, part.bytes, start, until, here)

    def optional(self, optional: OptionalTransfer, traffic: Traffic) -> None:
        """Add the copy, from its last route segment to its last reader, and the copies on relays."""
        request = traffic.requests[optional.request]
        size = self.problem.sizes_bytes[request.size]
        steps = list(zip(optional.start, optional.route, strict=True))
        for (begin, segment), (later, onward) in pairwise(steps):
            self.put(segment.target, size, begin, later + onward.ticks, optional.used)
        arrival = optional.start[-1] + optional.route[-1].ticks
        until = self._until(arrival, optional.used, request.keepers, optional.target)
        self.put(optional.target, size, optional.start[-1], until, optional.used)

    def put(self, device: int, size: int, begin: _Moment, until: _Moment, here: Literal) -> None:
        """Add bytes on a device between two ticks, if a literal holds."""
        if size and self.instance.capacity[device] is not None:
            length = self.model.new_int_var(0, self.upper, "")
            interval = self.model.new_optional_interval_var(begin, length, until, here, "")
            self.shelves[device].append((interval, size))

    def _until(self, least: _Moment, here: Literal, readers: Sequence[int], device: int) -> cp_model.IntVar:
        """A tick no earlier than `least` and than the end of all readers on a device."""
        until = self.model.new_int_var(0, self.upper, "")
        self.model.add(until >= least).only_enforce_if(here)
        for op in set(readers):
            there = self.variables.place[self.instance.block[op]].get(device)
            if there is not None:
                self.model.add(until >= self._end(op)).only_enforce_if(here, there)
        return until

    def _end(self, op: int) -> Linear | int:
        return self.variables.start[op] + duration(self.instance, self.variables, op)


_MOST_REQUESTS_BY_PAIR = 1600
"""Transfer requests × ordered device pairs above which the model takes seconds to build and proves nothing: 28 edges of
8 ops on 8 devices are 1,568."""

_FEW_ROUTES_SHARE = 0.2
"""Share of the time for the model with least-delay routes only, if devices may relay: a shorter schedule leaves fewer
routes to list. A guess."""

_MOST_TICKS = 2**45
"""Longer schedules are excluded, because sums of their times could exceed 64 bits."""


def solve_exactly(problem: Problem, instance: Instance, bounds: Bounds, incumbent: Incumbent, seconds: float) -> bool:
    """Solve a small problem as one model; False if no plan exists. If routes are omitted, nothing is proven."""
    traffic = instance.traffic
    if incumbent.closed or seconds <= 0:
        return True
    if traffic is None:
        return _solve(problem, instance, bounds, incumbent, seconds, every_route=True)
    if len(traffic.requests) * instance.device_count * (instance.device_count - 1) > _MOST_REQUESTS_BY_PAIR:
        return True
    timed = instance
    if problem.options.memory == "live":
        # Parameters take memory from their start, so their times matter too.
        timed = replace(instance, sources=frozenset(), sinks=frozenset())
    stop_at = now() + seconds
    if not traffic.routes.complete:
        # First improve the schedule with few routes: less slack leaves fewer routes to list.
        _solve(problem, timed, bounds, incumbent, _FEW_ROUTES_SHARE * seconds, every_route=False)
    return incumbent.closed or _solve(problem, timed, bounds, incumbent, stop_at - now(), every_route=True)


def _solve(
    problem: Problem, instance: Instance, bounds: Bounds, incumbent: Incumbent, seconds: float, every_route: bool
) -> bool:
    """Solve the model for some time; False if it proves that no plan exists."""
    best, upper = incumbent.best, problem.horizon
    if best is not None:
        upper = best.makespan
    elif instance.traffic is not None:
        # If any schedule fits in memory, one with all ops and transfers in sequence does.
        sent = sum(instance.traffic.routes.longest(request.size) for request in instance.traffic.requests)
        upper = sum(instance.longest) + (instance.device_count - 1) * sent
    model, variables = build_exact_model(problem, instance, bounds, min(upper, _MOST_TICKS), best, every_route)
    model.add(variables.makespan >= incumbent.bound)
    complete = not variables.left_out and upper <= _MOST_TICKS
    known = incumbent if complete else SchedulesOnly(incumbent)
    solvable = search(model, reader(variables, instance), known, seconds) is not SearchEnd.INFEASIBLE
    if not solvable and best is not None and complete:
        raise no_schedule_error(best)
    return solvable or not complete


def build_exact_model(
    problem: Problem, instance: Instance, bounds: Bounds, upper: int, start_from: Schedule | None, every_route: bool
) -> tuple[cp_model.CpModel, Variables]:
    """The model with transfers, and memory over time under ``memory: live``: then without `sources` and `sinks`."""
    model, variables = build_model(instance, bounds, upper, start_from, every_route)
    if problem.options.memory == "live" and instance.traffic is not None:
        fit_into_memory_at_all_times(model, problem, instance, instance.traffic, variables, upper)
        # CP-SAT does not derive these implied rows, and without them a few tight problems stay open.
        leave_working_room(model, problem, [variables.place[block] for block in instance.block])
    return model, variables
