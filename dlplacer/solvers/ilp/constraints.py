"""One function per rule of the ILP, with the paper's equation number.

No row with memory or load in it is ever enforced by a literal: CP-SAT's presolve may drop the enforcement of rows whose
Boolean coefficients sum past 2^31 (OR-Tools issue 5293).
"""

from collections.abc import Sequence
from itertools import pairwise
from math import gcd

from ortools.sat.python import cp_model

from dlplacer.solvers.bounds.arc_delays import ArcDelays
from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.decomposition.segments import GraphSegment
from dlplacer.solvers.decomposition.windows import Window
from dlplacer.solvers.ilp.variables import Linear, Literal, Pairs, Variables, duration
from dlplacer.solvers.instance.instance import FAR, Delay, Instance
from dlplacer.solvers.instance.symmetry import interchangeable

_PRECEDENCE_BLOCKS = 40


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
    where far_k is true if the devices are at least c_k apart. An arc whose reader cannot start before its data are
    there on any device has no row.
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
                pairs = _pairs(instance, op, target, delay, level)
                steps.append((level - below, _far(model, instance, variables, op, target, pairs)))
            if steps:
                travel = cp_model.LinearExpr.weighted_sum([far for _, far in steps], [step for step, _ in steps])
                model.add(variables.start[target] >= end + levels[0] + travel)


def run_one_op_at_a_time(model: cp_model.CpModel, instance: Instance, variables: Variables) -> None:
    """Eq. 12: the ops of a device do not overlap, and none of zero time starts strictly inside another.

    Sources and sinks of zero time need no interval. A source starts at 0, where nothing can be around it. A sink inside
    another op can be moved to that op's end: nothing reads it, and the makespan is no earlier than that end
    (`dlplacer.solvers.instance.outcome.compact` moves it).
    """
    resources: list[list[cp_model.IntervalVar]] = [[] for _ in instance.capacity]
    for op, start in enumerate(variables.start):
        if op in instance.sources or op in instance.sinks:
            continue
        for device, literal in variables.place[instance.block[op]].items():
            ticks = instance.duration[op][device]
            resources[device].append(
                model.new_optional_fixed_size_interval_var(start, ticks, literal, f"run{op}_{device}")
            )
    for resource in resources:
        if len(resource) > 1:
            model.add_no_overlap(resource)


def fit_into_memory(model: cp_model.CpModel, instance: Instance, variables: Variables) -> None:
    """Eq. 13: Σ_k M(k)·P(k, n) ≤ Mem(n), divided by the greatest common divisor of the footprints."""
    for device, capacity in enumerate(instance.capacity):
        here = [
            (size, literals[device])
            for size, literals in zip(instance.footprint, variables.place, strict=True)
            if size and device in literals
        ]
        if capacity is not None and sum(size for size, _ in here) > capacity:
            unit = gcd(*(size for size, _ in here))
            used = cp_model.LinearExpr.weighted_sum([there for _, there in here], [size // unit for size, _ in here])
            model.add(used <= capacity // unit)


def finish_before_makespan(model: cp_model.CpModel, instance: Instance, variables: Variables, bounds: Bounds) -> None:
    """The makespan is no earlier than the end of any op, nor than what the op's tail adds to it."""
    for op, start in enumerate(variables.start):
        if op not in instance.sources:
            end = start + duration(instance, variables, op)
            model.add(variables.makespan >= end + bounds.tail[op])


def bound_loads(model: cp_model.CpModel, instance: Instance, variables: Variables, bounds: Bounds) -> None:
    """Redundant: the work of a device fits between the least head and the least tail of the ops that may run there.

    Proof: its ops run one at a time (eq. 12), the first not before its head, and the last leaves its tail.
    """
    for device in range(instance.device_count):
        ops = [op for op, devices in enumerate(instance.allowed) if device in devices and instance.duration[op][device]]
        if ops:
            idle = min(bounds.head[op] for op in ops) + min(bounds.tail[op] for op in ops)
            work = cp_model.LinearExpr.weighted_sum(
                [variables.place[instance.block[op]][device] for op in ops],
                [instance.duration[op][device] for op in ops],
            )
            model.add(work <= variables.makespan - idle)


def join_surroundings(model: cp_model.CpModel, window: Window, variables: Variables) -> None:
    """A window's ops start after the release, and leave the tail, of the device that they are on."""
    for op, (release, tail) in enumerate(zip(window.release, window.tail, strict=True)):
        literals = variables.place[window.instance.block[op]]
        start = variables.start[op]
        if op not in window.instance.sources:
            model.add(start >= _chosen(literals, release))
        model.add(variables.makespan >= start + duration(window.instance, variables, op) + _chosen(literals, tail))


def charge_idle_ends(
    model: cp_model.CpModel,
    instance: Instance,
    variables: Variables,
    segment: GraphSegment,
    bounds: Bounds,
    offset: int,
) -> None:
    """Redundant, for a segment between cut ops: a device idles at its start if it is not the first cut op's, and so on.

    For every device q: its work + H·[used, first not on q] + T·[used, last not on q] ≤ the time from the start of the
    first cut op to that of the last. Proof: the first op between that runs on q has all its inputs from elsewhere, so
    it waits for the latest of them; H is the least such time over all ops between. T is the same backwards. A device
    that is not used pays nothing.

    Parameters
    ----------
    bounds
        Those of the segment alone.
    offset
        Position of the segment's first op in the instance.
    """
    last = len(segment.ops) - 1
    between = range(0 if segment.begins else 1, last)
    if not between:
        return
    block = instance.block[offset : offset + len(segment.ops)]
    blocks = tuple(dict.fromkeys(block[op] for op in between))
    ends = [(last, _least_entry(segment.instance.reversed, bounds.tail, between))]
    if not segment.begins:
        ends.append((0, _least_entry(segment.instance, bounds.head, between)))
    began = 0 if segment.begins else variables.start[offset]
    for device in range(instance.device_count):
        here = [op for op in range(last) if device in variables.place[block[op]]]
        if any(op in between for op in here):
            terms = [(variables.place[block[op]][device], segment.instance.duration[op][device]) for op in here]
            for end, lost in ends:
                if 0 < lost < FAR:
                    terms.append((_away(model, variables, device, blocks, block[end]), lost))
            work = cp_model.LinearExpr.weighted_sum(*zip(*terms, strict=True))
            model.add(work <= variables.start[offset + last] - began)


def _least_entry(instance: Instance, head: Sequence[int], ops: Sequence[int]) -> int:
    """The least tick at which a device can start one of the ops if it has none of their inputs."""
    delays = ArcDelays(instance)
    return min(
        max(
            head[source] + instance.shortest[source] + delays.cut(source, op, delay)
            for source, delay in instance.predecessors[op]
        )
        for op in ops
    )


def _away(
    model: cp_model.CpModel, variables: Variables, device: int, blocks: tuple[int, ...], other: int
) -> cp_model.IntVar:
    """A literal that is true if one of the blocks is on the device, and the other is not."""
    if (device, blocks, other) in variables.away:
        return variables.away[device, blocks, other]
    variables.away[device, blocks, other] = away = model.new_bool_var("")
    there = [variables.place[other][device]] if device in variables.place[other] else []
    for block in blocks:
        if device in variables.place[block] and block != other:
            model.add_bool_or([~variables.place[block][device], *there, away])
    return away


def break_symmetry(model: cp_model.CpModel, instance: Instance, variables: Variables) -> None:
    """Of devices that can be swapped, those of lower number are used first along the largest blocks.

    Any plan can be relabelled so, as swapping devices keeps its makespan. Block b may be on the j-th device of a class
    only if an earlier block is on the (j−1)-th.
    """
    for devices in interchangeable(instance):
        blocks = [block for block in symmetry_blocks(instance) if devices[0] in variables.place[block]]
        for count, block in enumerate(blocks):
            for before, device in pairwise(devices):
                earlier = _used(model, variables, before, tuple(blocks[:count]))
                model.add_bool_or([~variables.place[block][device], *earlier])


def symmetry_blocks(instance: Instance) -> list[int]:
    """The blocks along which `break_symmetry` orders devices: those with most work."""
    work = [sum(instance.longest[op] for op in ops) for ops in instance.members]
    return sorted(range(len(work)), key=lambda block: -work[block])[:_PRECEDENCE_BLOCKS]


def _chosen(literals: dict[int, Literal], values: Sequence[int]) -> Linear | int:
    """The value of the device that is chosen."""
    least = min(values[device] for device in literals)
    rest = [(literal, values[device] - least) for device, literal in literals.items() if values[device] > least]
    if not rest:
        return least
    return least + cp_model.LinearExpr.weighted_sum([literal for literal, _ in rest], [value for _, value in rest])


def _used(model: cp_model.CpModel, variables: Variables, device: int, blocks: tuple[int, ...]) -> list[Literal]:
    """Literals whose disjunction tells whether one of the blocks is on a device: at most two, the chain goes on."""
    if len(blocks) < 2:
        return [variables.place[block][device] for block in blocks]
    if (device, blocks) not in variables.used:
        before = _used(model, variables, device, blocks[:-1])
        variables.used[device, blocks] = either = model.new_bool_var("")
        model.add_bool_or([*before, variables.place[blocks[-1]][device], ~either])
    return [variables.used[device, blocks]]


def _levels(instance: Instance, op: int, target: int, delay: Delay) -> list[int]:
    """The distinct delays of an arc over the allowed pairs that a route joins, ascending."""
    found = {delay[a][b] for a in instance.allowed[op] for b in instance.allowed[target]}
    return sorted(ticks for ticks in found if ticks < FAR) or [0]


def _pairs(instance: Instance, op: int, target: int, delay: Delay, level: int) -> Pairs:
    return frozenset((a, b) for a in instance.allowed[op] for b in instance.allowed[target] if delay[a][b] >= level)


def _far(
    model: cp_model.CpModel, instance: Instance, variables: Variables, op: int, target: int, pairs: Pairs
) -> Literal:
    """A literal that is true if the two ops are on one of the pairs."""
    key = instance.block[op], instance.block[target], pairs
    if key not in variables.far:
        variables.far[key] = model.new_bool_var("")
        _imply(model, variables, key[:2], pairs, variables.far[key])
    return variables.far[key]


def _imply(
    model: cp_model.CpModel, variables: Variables, ends: tuple[int, int], pairs: Pairs, then: Literal | None
) -> None:
    """One clause per source device a: not there, or the target on a device b with (a, b) not in pairs, or `then`."""
    sources, targets = variables.place[ends[0]], variables.place[ends[1]]
    for a, literal in sources.items():
        near = [targets[b] for b in targets if (a, b) not in pairs]
        if len(near) < len(targets):
            model.add_bool_or([~literal, *near, *([] if then is None else [then])])
