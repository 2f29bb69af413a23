"""One function per rule of the ILP, with its equation number in Pal et al. 2019.

No literal enforces a row with memory or load: CP-SAT's presolve may drop the enforcement of rows whose Boolean
coefficients sum past 2^31 (OR-Tools issue 5293).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd

from ortools.sat.python import cp_model

from dlplacer.problem.route_table import TimedRoute
from dlplacer.solvers.bounds import Bounds
from dlplacer.solvers.instance.instance import FAR, Delay, Instance, interchangeable

Literal = cp_model.LiteralT
Linear = cp_model.LinearExpr
Pairs = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class OptionalTransfer:
    """A route that a request may take between two devices: whether it is used, and the start of each segment."""

    request: int
    source: int
    target: int
    route: TimedRoute
    used: Literal
    start: tuple[cp_model.IntVar, ...]


@dataclass(frozen=True)
class Variables:
    """The variables of an instance; the constraints fill the last four fields.

    Attributes
    ----------
    place
        [block] → device → literal, true if the block is there: P(k, n).
    start
        [op] → its start tick T(k); the constant 0 for zero-time sources.
    far
        (block, block, pairs of devices) → literal that is true if the blocks are on one of these pairs; it may also be
        true otherwise, which only lengthens a delay.
    away
        (device, blocks, other block) → literal that is true if one of the blocks is there and the other block is not.
    optional_transfers
        The routes of all transfer requests, if transfers are part of the model.
    left_out
        Transfer requests with routes outside the model, which then gives no bound.
    """

    place: tuple[dict[int, Literal], ...]
    start: tuple[cp_model.IntVar, ...]
    makespan: cp_model.IntVar
    far: dict[tuple[int, int, Pairs], cp_model.IntVar] = field(default_factory=dict)
    away: dict[tuple[int, tuple[int, ...], int], cp_model.IntVar] = field(default_factory=dict)
    optional_transfers: list[OptionalTransfer] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)


def create_variables(model: cp_model.CpModel, instance: Instance, bounds: Bounds, upper: int) -> Variables:
    """Variables whose domains exclude values impossible in a schedule of at most `upper` ticks."""
    place = place_blocks(model, instance)
    start: list[cp_model.IntVar] = []
    for op in range(instance.op_count):
        latest = upper - bounds.tail[op] - instance.shortest[op]
        fixed = op in instance.sources
        start.append(model.new_constant(0) if fixed else model.new_int_var(bounds.head[op], latest, f"start{op}"))
    return Variables(place, tuple(start), model.new_int_var(bounds.makespan, upper, "makespan"))


def place_blocks(model: cp_model.CpModel, instance: Instance) -> tuple[dict[int, Literal], ...]:
    """[block] → device → literal, true if the block is there: P(k, n)."""

    def literals(block: int, devices: Sequence[int]) -> dict[int, Literal]:
        if len(devices) == 1:
            return {devices[0]: model.new_constant(1)}
        # One literal and its negation: half the variables, and no exactly-one row.
        if len(devices) == 2:
            literal = model.new_bool_var(f"place{block}")
            return {devices[0]: literal, devices[1]: literal.negated()}
        return {device: model.new_bool_var(f"place{block}_{device}") for device in devices}

    return tuple(literals(block, instance.allowed[ops[0]]) for block, ops in enumerate(instance.members))


def duration(instance: Instance, variables: Variables, op: int) -> Linear | int:
    """Δ(k) as an expression in the placement."""
    if instance.shortest[op] == instance.longest[op]:
        return instance.shortest[op]
    literals = variables.place[instance.block[op]]
    return Linear.weighted_sum(list(literals.values()), [instance.duration[op][device] for device in literals])


def hint(
    model: cp_model.CpModel, instance: Instance, variables: Variables, device: Sequence[int], start: Sequence[int]
) -> None:
    """Start the search at a schedule, with a hint for every variable."""
    placement = [device[ops[0]] for ops in instance.members]
    for block, literals in enumerate(variables.place):
        for there, literal in literals.items():
            if isinstance(literal, cp_model.IntVar) and len(literals) > 1:
                model.add_hint(literal, placement[block] == there)
    for op, variable in enumerate(variables.start):
        if op not in instance.sources:
            model.add_hint(variable, start[op])
    # Auxiliary literals too: CP-SAT abandons a hint that it cannot complete within few conflicts.
    for (source, target, pairs), literal in variables.far.items():
        model.add_hint(literal, (placement[source], placement[target]) in pairs)
    for (there, blocks, other), literal in variables.away.items():
        used = any(placement[block] == there for block in blocks)
        model.add_hint(literal, used and placement[other] != there)
    end = max(begin + instance.duration[op][device[op]] for op, begin in enumerate(start))
    model.add_hint(variables.makespan, end)


_ORDERED_BLOCKS = 40
"""Blocks along which devices are ordered; the remainder is hardly ever symmetric. A guess."""


def place_every_op(model: cp_model.CpModel, instance: Instance, variables: Variables) -> None:
    """Eq. 7: Σ_n P(k, n) = 1, over the allowed devices of each block."""
    for literals in variables.place:
        if len(literals) > 2:
            model.add_exactly_one(literals.values())


def join_communicating_ops(model: cp_model.CpModel, instance: Instance, variables: Variables) -> None:
    """Eq. 8 and 9: a tensor needs a route from its producer's device to its consumer's; other pairs are forbidden."""
    done = set()
    for op, arcs in enumerate(instance.successors):
        for target, delay in arcs:
            ends = instance.block[op], instance.block[target]
            if ends[0] == ends[1] or ends in done:
                continue
            done.add(ends)
            unjoined = _pairs(instance, op, target, delay, FAR)
            if unjoined:
                _imply(model, variables, ends, unjoined, None)


def respect_precedence(
    model: cp_model.CpModel, instance: Instance, variables: Variables, bounds: Bounds, upper: int
) -> None:
    """Eq. 10 and 11: T(j) ≥ T(i) + Δ(i) + the delay between the devices of i and j.

    With the distinct delays c_0 < c_1 < … of an arc the row is T(j) ≥ T(i) + Δ(i) + c_0 + Σ_k (c_k − c_{k−1})·far_k,
    where far_k is true if the devices are at least c_k apart. An arc whose data always arrive before its reader can
    start has no row.
    """
    for op, arcs in enumerate(instance.successors):
        for target, delay in arcs:
            same_block = instance.block[op] == instance.block[target]
            levels = [0] if same_block else _levels(instance, op, target, delay)
            latest_end = upper - bounds.tail[op] if op not in instance.sources else 0
            if latest_end + levels[-1] <= bounds.head[target]:
                continue
            end = variables.start[op] + duration(instance, variables, op)
            model.add(variables.start[target] >= end + levels[0])
            steps: list[tuple[int, Literal]] = []
            for below, level in pairwise(levels):
                key = instance.block[op], instance.block[target], _pairs(instance, op, target, delay, level)
                if key not in variables.far:
                    variables.far[key] = model.new_bool_var("")
                    _imply(model, variables, key[:2], key[2], variables.far[key])
                steps.append((level - below, variables.far[key]))
            if steps:
                travel = Linear.weighted_sum([far for _, far in steps], [step for step, _ in steps])
                model.add(variables.start[target] >= end + levels[0] + travel)


def run_one_op_at_a_time(model: cp_model.CpModel, instance: Instance, variables: Variables) -> None:
    """Eq. 12: the ops of a device do not overlap, and no zero-time op starts strictly inside another.

    Zero-time sources and sinks need no interval. A source starts at 0, before which no op runs. A sink inside another
    op can move to that op's end (`decode.compact`): no op reads the sink, and the makespan is at least that end.
    """
    resources: list[list[cp_model.IntervalVar]] = [[] for _ in instance.capacity]
    for op, start in enumerate(variables.start):
        if op in instance.sources or op in instance.sinks:
            continue
        for device, literal in variables.place[instance.block[op]].items():
            ticks = instance.duration[op][device]
            interval = model.new_optional_fixed_size_interval_var(start, ticks, literal, f"run{op}_{device}")
            resources[device].append(interval)
    # Disjunctive only: a redundant cumulative over all devices slows proofs.
    for resource in resources:
        if len(resource) > 1:
            model.add_no_overlap(resource)


def fit_into_memory(model: cp_model.CpModel, instance: Instance, variables: Variables) -> None:
    """Eq. 13: Σ_k M(k)·P(k, n) ≤ Mem(n), divided by the greatest common divisor of the footprints."""
    for device, capacity in enumerate(instance.capacity):
        sizes = zip(instance.footprint, variables.place, strict=True)
        here = [(size, literals[device]) for size, literals in sizes if size and device in literals]
        if capacity is not None and sum(size for size, _ in here) > capacity:
            unit = gcd(*(size for size, _ in here))
            used = Linear.weighted_sum([there for _, there in here], [size // unit for size, _ in here])
            model.add(used <= capacity // unit)


def finish_before_makespan(model: cp_model.CpModel, instance: Instance, variables: Variables, bounds: Bounds) -> None:
    """The makespan is no earlier than the end of any op plus its tail."""
    for op, start in enumerate(variables.start):
        if op not in instance.sources:
            end = start + duration(instance, variables, op)
            model.add(variables.makespan >= end + bounds.tail[op])


def bound_loads(model: cp_model.CpModel, instance: Instance, variables: Variables, bounds: Bounds) -> None:
    """Redundant: the work of a device fits between the least head and the least tail of the ops allowed there.

    Proof: its ops run one at a time (eq. 12), the first no earlier than its head, and the last is followed by its tail.
    """
    for device in range(instance.device_count):
        ops = [op for op, devices in enumerate(instance.allowed) if device in devices and instance.duration[op][device]]
        if ops:
            idle = min(bounds.head[op] for op in ops) + min(bounds.tail[op] for op in ops)
            here = [variables.place[instance.block[op]][device] for op in ops]
            work = Linear.weighted_sum(here, [instance.duration[op][device] for op in ops])
            model.add(work <= variables.makespan - idle)


def minimize_makespan(model: cp_model.CpModel, variables: Variables) -> None:
    """The objective: minimise the tick at which the last op ends."""
    model.minimize(variables.makespan)


def break_symmetry(model: cp_model.CpModel, instance: Instance, variables: Variables, device: Sequence[int]) -> None:
    """An interchangeable device gets one of the largest blocks only if the previous one has a block as large.

    Swaps keep makespans, so any plan can be relabelled. Devices are ordered so that a known schedule, [op] → device,
    obeys the rule.
    """
    work = [sum(instance.longest[op] for op in ops) for ops in instance.members]
    largest = sorted(range(len(work)), key=lambda block: -work[block])[:_ORDERED_BLOCKS]
    met = list(dict.fromkeys(device[instance.members[block][0]] for block in largest))
    for devices in interchangeable(instance):
        ordered = sorted(devices, key=lambda one: met.index(one) if one in met else len(met))
        blocks = [block for block in largest if devices[0] in variables.place[block]]
        for count, block in enumerate(blocks):
            for before, here in pairwise(ordered):
                earlier = [variables.place[other][before] for other in blocks[:count]]
                model.add_bool_or([~variables.place[block][here], *earlier])


def _levels(instance: Instance, op: int, target: int, delay: Delay) -> list[int]:
    """The distinct delays of an arc over the allowed pairs that a route joins, ascending."""
    found = {delay[a][b] for a in instance.allowed[op] for b in instance.allowed[target]}
    return sorted(ticks for ticks in found if ticks < FAR) or [0]


def _pairs(instance: Instance, op: int, target: int, delay: Delay, level: int) -> Pairs:
    return frozenset((a, b) for a in instance.allowed[op] for b in instance.allowed[target] if delay[a][b] >= level)


def _imply(
    model: cp_model.CpModel, variables: Variables, ends: tuple[int, int], pairs: Pairs, then: Literal | None
) -> None:
    """Add a clause per source device a: source not on a, target on a device b with (a, b) not in pairs, or `then`."""
    sources, targets = variables.place[ends[0]], variables.place[ends[1]]
    for a, literal in sources.items():
        # `then` may be true too often, so that D clauses per arc suffice in place of D².
        near = [targets[b] for b in targets if (a, b) not in pairs]
        if len(near) < len(targets):
            model.add_bool_or([~literal, *near, *([] if then is None else [then])])
