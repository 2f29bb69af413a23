"""The cost of idle devices at the ends of a section: a bound, and redundant rows of its model."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from dlplacer.solvers.bounds import Bounds, arc_delays, reachable_capacity
from dlplacer.solvers.decomposition.sections import GraphSection
from dlplacer.solvers.ilp.constraints import Variables
from dlplacer.solvers.instance.instance import FAR, Instance

_MOST_UNITS = 2**17
"""Units of a section's work up to which sums of ops' times are listed, with one bit each."""


def charge_idle_ends(
    model: cp_model.CpModel,
    instance: Instance,
    variables: Variables,
    section: GraphSection,
    bounds: Bounds,
    offset: int,
) -> None:
    """Add redundant rows for a section between cut ops: a device idles at each end whose cut op is on another device.

    For every device q: its work + H·[used, first not on q] + T·[used, last not on q] ≤ the time from the start of the
    first cut op to the start of the last. Proof: the first op between these two that runs on q has all its inputs from
    other devices, so it waits for the latest input; H is the least such time over all ops between. T is the same
    backwards. An unused device pays nothing. `bounds` are the section's own; its first op is at `offset` in `instance`.
    """
    last, between = len(section.ops) - 1, _between(section)
    if not between:
        return
    block = instance.block[offset : offset + len(section.ops)]
    blocks = tuple(dict.fromkeys(block[op] for op in between))
    ends = _ends(section, bounds)
    began = 0 if section.begins else variables.start[offset]
    # CP-SAT does not derive these rows itself, and they can turn an open section into a proof.
    for device in range(instance.device_count):
        here = [op for op in range(last) if device in variables.place[block[op]]]
        if any(op in between for op in here):
            terms = [(variables.place[block[op]][device], section.instance.duration[op][device]) for op in here]
            for end, lost in ends:
                if lost:
                    terms.append((_away(model, variables, device, blocks, block[end]), lost))
            work = cp_model.LinearExpr.weighted_sum(*zip(*terms, strict=True))
            model.add(work <= variables.start[offset + last] - began)


def ticks_with_idle_ends(section: GraphSection, bounds: Bounds) -> int:
    """A lower bound in ticks on a section, from idle time at its ends and the largest sums of op times that fit.

    Proof: let the first cut op be on device p and the last on l. On p, ops between them start after the first cut op;
    on another device, no earlier than the first such op can start there (`_entries`). The same holds backwards from l.
    Within the time that is left, a device runs at most the largest sum of ops' times that fits. The least value over p
    and l holds for every choice of p and l.
    """
    between = _between(section)
    if not between:
        return 0
    instance, last = section.instance, len(section.ops) - 1
    # [p, q] and [l, q] → ticks that are lost.
    before = np.zeros((1, instance.device_count), dtype=np.int64)
    if not section.begins:
        before = _entries(instance, 0, between, _least_entry(instance, bounds.head, between))
    after = _entries(instance.reversed, last, between, _least_entry(instance.reversed, bounds.tail, between))
    together = not section.begins and instance.block[0] == instance.block[last]
    pairs = zip(before, after, strict=True) if together else product(before, after)
    idle = {tuple(sorted(map(int, first + final))) for first, final in pairs}
    ticks = [instance.shortest[op] for op in between]
    # Rounding down to coarser ticks is a relaxation.
    unit = 1 + sum(ticks) // _MOST_UNITS
    work = [op // unit for op in ticks]

    def suffice(length: int) -> bool:
        rooms = ([length - lost // unit for lost in row if lost // unit < length] for row in idle)
        return any(sum(room or 0 for room in reachable_capacity(work, several)) >= sum(work) for several in rooms)

    return unit * bisect_left(range(sum(work) + min(row[0] for row in idle) // unit), True, key=suffice)


def _between(section: GraphSection) -> range:
    """Positions of the ops between the cut ops."""
    return range(0 if section.begins else 1, len(section.ops) - 1)


def _ends(section: GraphSection, bounds: Bounds) -> list[tuple[int, int]]:
    """Positions of the cut ops, each with the ticks for which a device that does not run it must idle there."""
    between = _between(section)
    ends = [(len(section.ops) - 1, _least_entry(section.instance.reversed, bounds.tail, between))]
    if not section.begins:
        ends.append((0, _least_entry(section.instance, bounds.head, between)))
    return [(op, lost if lost < FAR else 0) for op, lost in ends]


def _entries(instance: Instance, cut: int, between: range, least: int) -> NDArray[np.int64]:
    """[device of a cut op, device] → the least tick at which the device can start one of the ops between.

    On the paths followed each op takes the best device for its reader; devices without the cut op obey `least` too.
    """
    count, devices = instance.device_count, list(instance.allowed[cut])
    entry = np.full((len(devices), count), FAR, dtype=np.int64)
    ready = entry.copy()
    ready[range(len(devices)), devices] = 0
    found = {cut: ready}
    for op in instance.order:
        arcs = instance.predecessors[op]
        if op == cut or any(source not in found for source, _ in arcs):
            continue  # paths to an input of the op already take as long as all entries
        ready = np.zeros((len(devices), count), dtype=np.int64)
        for source, delay in arcs:
            ended = found[source] + np.array(instance.duration[source], dtype=np.int64)
            ready = np.maximum(ready, (ended[:, :, None] + np.array(delay, dtype=np.int64)[None]).min(axis=1))
        ready[:, [device for device in range(count) if device not in instance.allowed[op]]] = FAR
        if op in between:
            entry = np.minimum(entry, ready)
        if (ready < entry.max(axis=1, keepdims=True)).any():
            found[op] = ready
    entry = np.maximum(np.minimum(entry, FAR), least if least < FAR else 0)
    entry[range(len(devices)), devices] = [instance.duration[cut][device] for device in devices]
    return entry


def _least_entry(instance: Instance, head: Sequence[int], ops: Sequence[int]) -> int:
    """The least tick at which a device other than the first cut op's can start one of the ops.

    Proof: take the first of all such starts. All ops that lead to the starting op run on the first cut op's device, one
    after another. The last of them is an input, and is sent only then. No other device starts earlier, so the bound
    holds there too. The same argument holds for the ops that lead to each input.
    """
    least, found, work = FAR, dict[int, frozenset[int]](), instance.shortest
    for op in instance.order:
        sources = [source for source, _ in instance.predecessors[op]]
        if any(source not in found for source in sources):
            # The ops that lead to an input alone take at least the current least, and all of them lead here.
            continue
        before = frozenset(sources).union(*(found[source] for source in sources))
        ticks = sum(work[other] for other in before)
        if ticks < least:
            found[op] = before
        if op in ops:
            cut = {source: arc_delays(instance, source, op, arc).cut for source, arc in instance.predecessors[op]}
            ready = {source: max(head[source], sum(work[other] for other in found[source])) for source in cut}
            arrivals = (ready[source] + work[source] + cut[source] for source in cut)
            least = min(least, max(ticks + min(cut.values()), *arrivals))
    return least


def _away(
    model: cp_model.CpModel, variables: Variables, device: int, blocks: tuple[int, ...], other: int
) -> cp_model.IntVar:
    """A literal that is true if one of the blocks is on the device and the other block is not."""
    if (device, blocks, other) in variables.away:
        return variables.away[device, blocks, other]
    variables.away[device, blocks, other] = away = model.new_bool_var("")
    there = [variables.place[other][device]] if device in variables.place[other] else []
    for block in blocks:
        if device in variables.place[block] and block != other:
            model.add_bool_or([~variables.place[block][device], *there, away])
    return away
