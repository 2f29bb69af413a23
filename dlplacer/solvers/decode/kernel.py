"""Kernels: an instance as tables, a schedule under construction, transfers in gaps of links, the run of a sequence.

A solution is a device for every op and a sequence of all ops but sources. It runs as in `in_sequence`: each op starts
when its device is free and its inputs have arrived. Inputs are sent at the op's turn, by the route on which they arrive
first, into the first gap on its links. All times are ticks.

Compiled code passes every array by value, so a few tables with named columns compile and run much faster than many
vectors. It copies element by element, because numba takes a second or more to compile each assignment to a slice.
"""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.route_table import RouteTable, ScheduledTransfer
from dlplacer.solvers.instance.instance import FAR, Instance

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNLIMITED = 2**60
"""Memory of a device without limit."""

_MOST_WITH_DETOURS = 8
"""Devices up to which several routes per pair are listed, because each pair needs its own search."""

IS_SOURCE, UNIT, WAITS, FREES, READS, WRITES = 0, 1, 2, 4, 6, 8
"""Columns of `InstanceArrays.ops`: whether the op is a source, its block, and the first of two limits of four lists:
the ops that it waits for without reading them (the barrier's arcs), the ops that wait for it without reading it, the
requests that it reads, and the requests that it produces."""

SOURCE, CLASS, READERS = 0, 1, 2
"""Columns of `InstanceArrays.requests`: producer, class of its size, and the first of two limits of its readers."""

BYTES, MEMBERS = 0, 1
"""Columns of `InstanceArrays.units`: footprint, and the first of two limits of its ops."""

FIRST_HOLD = 2
"""Column of `InstanceArrays.segments`: first of two limits in `holds`; ticks are column 0 + column 1 × bytes."""


class InstanceArrays(NamedTuple):
    """An instance in tables. `ops`, `requests` and `units` have the columns above; their limits are places in `lists`.

    Attributes
    ----------
    ticks
        [op, device] → duration.
    sizes, capacity
        [request] → bytes, and [device] → bytes.
    allowed
        [unit, device] → 1 if all its ops may run there.
    routes
        [class of sizes, source, target] → number of the quickest route, and count of routes from this number on.
    segments_at
        [route] → its first route segment.
    holds
        Link direction; first and last tick of its use after the segment's start, each linear in the bytes (2 columns).
    """

    ticks: Ints
    ops: Ints
    requests: Ints
    units: Ints
    lists: Ints
    sizes: Floats
    allowed: Ints
    routes: Ints
    segments_at: Ints
    segments: Floats
    holds: Floats
    capacity: Ints


_Request = tuple[int, int, int, Sequence[int]]
"""Source, class of sizes, bytes, and readers."""

_RouteTables = tuple[Ints, Ints, Floats, Floats]


def tables_of(instance: Instance) -> InstanceArrays:
    """The tables of an instance, computed once."""
    if "tables" not in instance.known:
        instance.known["tables"] = _build_tables(instance)
    return instance.known["tables"]  # type: ignore[no-any-return]


def _build_tables(instance: Instance) -> InstanceArrays:
    lists, count = list[int](), instance.op_count

    def add(values: Sequence[int]) -> tuple[int, int]:
        lists.extend(values)
        return len(lists) - len(values), len(lists)

    sent, routes = _without_links(instance) if instance.traffic is None else _over_links(instance)
    ops = np.zeros((count, WRITES + 2), np.int64)
    ops[list(instance.sources), IS_SOURCE] = 1
    ops[:, UNIT] = instance.block
    reads, writes, frees = ([list[int]() for _ in range(count)] for _ in range(3))
    for number, (source, _, _, readers) in enumerate(sent):
        writes[source].append(number)
        for reader in readers:
            reads[reader].append(number)
    for op, arcs in enumerate(instance.predecessors):
        read = {sent[number][0] for number in reads[op]}
        waits = [source for source, _ in arcs if source not in read]
        for source in waits:
            frees[source].append(op)
        ops[op, WAITS : WAITS + 2] = add(waits)
    for column, rows in ((READS, reads), (WRITES, writes), (FREES, frees)):
        for op, row in enumerate(rows):
            ops[op, column : column + 2] = add(row)
    requests = [(source, kind, *add(readers)) for source, kind, _, readers in sent]
    units = [(size, *add(members)) for size, members in zip(instance.footprint, instance.members, strict=True)]
    allowed = np.zeros((len(instance.members), instance.device_count), np.int64)
    for block, members in enumerate(instance.members):
        allowed[block, list(instance.allowed[members[0]])] = 1
    return InstanceArrays(
        np.array(instance.duration, np.int64).reshape(count, instance.device_count),
        ops,
        np.array(requests, np.int64).reshape(-1, READERS + 2),
        np.array(units, np.int64),
        np.array(lists, np.int64),
        np.array([size for _, _, size, _ in sent], np.float64),
        allowed,
        *routes,
        np.array([UNLIMITED if room is None else room for room in instance.capacity], np.int64),
    )


def _without_links(instance: Instance) -> tuple[Sequence[_Request], _RouteTables]:
    """Requests and one route per device pair; an output's readers with equal delays share a request."""
    matrices: dict[int, tuple[int, Sequence[Sequence[int]]]] = {}
    requests: dict[tuple[int, int], list[int]] = {}
    for op, arcs in enumerate(instance.successors):
        for target, delay in arcs:
            kind, _ = matrices.setdefault(id(delay), (len(matrices), delay))
            requests.setdefault((op, kind), []).append(target)
    devices = instance.device_count
    count = max(1, len(matrices)) * devices**2
    table = np.stack([np.arange(count), np.ones(count, np.int64)], axis=1).reshape(-1, devices, devices, 2)
    segments = np.zeros((count, FIRST_HOLD + 2))
    segments[:, 0] = np.array([delay for _, delay in matrices.values()] or segments[:, 0], np.float64).reshape(-1)
    sent = [(op, kind, 0, readers) for (op, kind), readers in requests.items()]
    return sent, (table, np.arange(count + 1, dtype=np.int64), segments, np.zeros((0, 5)))


def _over_links(instance: Instance) -> tuple[Sequence[_Request], _RouteTables]:
    assert instance.traffic is not None
    table = instance.traffic.routes
    if table not in _of_table:
        _of_table[table] = _timed(table, instance.device_count)
    sizes_bytes, (classes, routes, _) = table.problem.sizes_bytes, _of_table[table]
    sent = [(one.source, classes[one.size], sizes_bytes[one.size], one.readers) for one in instance.traffic.requests]
    return sent, routes


Hops = list[tuple[tuple[str, str], ...]]

_of_table: WeakKeyDictionary[RouteTable, tuple[dict[int, int], _RouteTables, list[Hops]]] = WeakKeyDictionary()


def hops_of(instance: Instance, segment: int) -> Hops:
    """The links of a segment's route, segment by segment; empty if there is no route."""
    assert instance.traffic is not None
    number = np.searchsorted(tables_of(instance).segments_at, segment, side="right") - 1
    return _of_table[instance.traffic.routes][2][number]


def _timed(routes: RouteTable, device_count: int) -> tuple[dict[int, int], _RouteTables, list[Hops]]:
    """Size → class, the tables of routes, and the links of routes; a route's ticks are linear in the bytes."""
    alike, sizes_bytes, above = dict[int, list[int]](), routes.problem.sizes_bytes, not routes.problem.exact
    for size, same in enumerate(routes.problem.routes):
        # Tensors of these sizes take the same least-delay routes between all devices.
        alike.setdefault(id(same), []).append(size)
    table = np.zeros((max(1, len(alike)), device_count, device_count, 2), np.int64)
    found, segments_at, segments, holds = list[Hops](), [0], list[tuple[float, ...]](), list[tuple[float, ...]]()
    for kind, group in enumerate(alike.values()):
        least, most = group[0], group[-1]
        ends = sizes_bytes[least], sizes_bytes[most]
        for source, target in permutations(range(device_count), 2):
            several: list[Hops] = [[]]
            if routes.joined(least, source, target):
                timed = routes.between(least, source, target)[: None if device_count <= _MOST_WITH_DETOURS else 1]
                several = [[segment.hops for segment in route] for route in timed]
            table[kind, source, target] = len(found), len(several)
            for hops in several:
                for low, high in zip(routes.along(hops, least), routes.along(hops, most), strict=True):
                    first = len(holds)
                    for (link, begin, ticks), (_, later, longer) in zip(low.holds, high.holds, strict=True):
                        until = _line(ends, begin + ticks, later + longer, above)
                        holds.append((link, *_line(ends, begin, later), *until))
                    segments.append((*_line(ends, low.ticks, high.ticks, above), first, len(holds)))
                if not hops:
                    segments.append((FAR, 0.0, len(holds), len(holds)))
                segments_at.append(len(segments))
            found.extend(several)
    tables = (
        table,
        np.array(segments_at, np.int64),
        np.array(segments, np.float64).reshape(-1, FIRST_HOLD + 2),
        np.array(holds, np.float64).reshape(-1, 5),
    )
    return {size: kind for kind, group in enumerate(alike.values()) for size in group}, tables, found


def _line(ends: tuple[int, int], low: int, high: int, above: bool = False) -> tuple[float, float]:
    """Base and slope of a line through the ticks of two sizes; with `above`, raised by one tick.

    Ticks may be rounded down. Then they lie between the line through two of them and that line plus one.
    """
    if ends[0] == ends[1]:
        return low + 1e-6, 0.0
    slope = (high - low) / (ends[1] - ends[0])
    return low - slope * ends[0] + (1.0 if above else 1e-6), slope


DEVICE, PLACE, START, END, PATH, DEVICE_BEFORE, PATH_BEFORE = range(7)
"""Columns of `Solution.ops`: device, place in the sequence (-1 for sources), start, end, longest path from the op's
start to the end of the schedule, and its device and path before annealing moved it."""

ARRIVAL, LAST_LEG, ARRIVAL_RUN = range(3)
"""Columns of `Solution.arrivals`: arrival of a request on a device, its last leg, and the run in which it was sent."""

REQUEST, TARGET, SEGMENT, SEGMENT_LIMIT, BEGIN, ASKED_AT, LEG_PATH, PREVIOUS = range(8)
"""Columns of `Solution.legs`: request, device, route segment, the first segment after its route, start, place of the op
that required it, longest path from its start, the previous leg on its route (-1: none)."""

FROM, TO, LEG = range(3)
"""Columns of `Solution.busy`: start and end tick of a use of a link direction, and its leg."""

LEGS, RUN, MAKESPAN, CRITICAL, OVERFLOW = range(5)
"""Places in `Solution.counts`: legs, number of the run, makespan, critical ops; `OVERFLOW` is 1 if a table is full."""

NEVER = 2**62


class Solution(NamedTuple):
    """Devices and sequence, and their last run.

    Attributes
    ----------
    ops, arrivals, legs
        [op, column], [request, device, column], [leg, column].
    busy, uses
        [link direction, use, column], and the number of uses.
    critical
        Ops where a move may shorten a critical path.
    moved
        Units that annealing moves at once.
    used, free
        [device] → bytes, and a vector for internal use.
    unsent
        A heap for internal use: requests still to be sent for an op, by end of the producer and place in the op's list.
    """

    ops: Ints
    sequence: Ints
    arrivals: Ints
    legs: Ints
    busy: Ints
    uses: Ints
    critical: Ints
    moved: Ints
    used: Ints
    free: Ints
    counts: Ints
    unsent: Ints


_FIRST_WIDTH, _MOST_MOVED = 64, 32
"""Initial capacity of tables in uses of a link direction, and the most units that move at once."""


def filled(
    instance: Instance, devices: Ints, sequence: Ints, build: Callable[[Solution], int], width: int = _FIRST_WIDTH
) -> tuple[Solution, int]:
    """Tables with the run made by `build`, and its makespan; the initial `width` grows until they hold the run."""
    while True:
        solution = _empty(tables_of(instance), devices, sequence, width)
        makespan = build(solution)
        if not solution.counts[OVERFLOW]:
            return solution, int(makespan)
        width *= 2


def transfers(instance: Instance, solution: Solution) -> list[ScheduledTransfer]:
    """The transfers of a run; empty if there is no traffic."""
    traffic, found = instance.traffic, list[ScheduledTransfer]()
    if traffic is None:
        return found
    start: tuple[int, ...] = ()
    for row in solution.legs[: solution.counts[LEGS]].tolist():
        start = (*(start if row[PREVIOUS] >= 0 else ()), row[BEGIN])
        request = traffic.requests[row[REQUEST]]
        hops = hops_of(instance, row[SEGMENT])
        if hops and row[SEGMENT] + 1 == row[SEGMENT_LIMIT]:
            route = traffic.routes.along(hops, request.size)
            found.append(ScheduledTransfer(row[REQUEST], row[TARGET], route, start))
    return found


def _empty(arrays: InstanceArrays, devices: Ints, sequence: Ints, width: int) -> Solution:
    """Tables for a solution before its run, with room for `width` uses of every link direction."""
    count, device_count = arrays.ticks.shape
    resources = int(arrays.holds[:, 0].max(initial=-1)) + 1
    table = np.zeros((count, PATH_BEFORE + 1), np.int64)
    table[:, DEVICE], table[:, PLACE] = devices, -1
    table[sequence, PLACE] = np.arange(len(sequence))
    used = np.zeros(device_count, np.int64)
    np.add.at(used, devices[arrays.lists[arrays.units[:, MEMBERS]]], arrays.units[:, BYTES])
    most_legs = width * (resources + len(arrays.requests) // _FIRST_WIDTH + 1)
    return Solution(
        table,
        sequence.copy(),
        np.zeros((len(arrays.requests), device_count, ARRIVAL_RUN + 1), np.int64),
        np.zeros((most_legs, PREVIOUS + 1), np.int64),
        np.zeros((resources, width, LEG + 1), np.int64),
        np.zeros(resources, np.int64),
        np.zeros(2 * most_legs + len(sequence), np.int64),
        np.zeros(_MOST_MOVED, np.int64),
        used,
        np.zeros(device_count, np.int64),
        np.zeros(OVERFLOW + 1, np.int64),
        np.zeros((1, int((arrays.ops[:, READS + 1] - arrays.ops[:, READS]).max(initial=0)), 2), np.int64),
    )


FIRST, SECOND = 0, 1
"""Columns of a heap's row: primary and secondary sort key."""


def push(heaps: Ints, heap: int, count: int, first: int, second: int) -> None:
    """Add a row to a heap of `count` rows, the least first."""
    row = count
    while row > 0:
        above = (row - 1) >> 1
        if heaps[heap, above, 0] < first or (heaps[heap, above, 0] == first and heaps[heap, above, 1] < second):
            break
        heaps[heap, row, 0], heaps[heap, row, 1] = heaps[heap, above, 0], heaps[heap, above, 1]
        row = above
    heaps[heap, row, 0], heaps[heap, row, 1] = first, second


def pop(heaps: Ints, heap: int, count: int) -> None:
    """Remove the first row of a heap of `count` rows."""
    last, row, below = count - 1, 0, 1
    first, second = heaps[heap, last, 0], heaps[heap, last, 1]
    while below < last:
        right = below + 1
        if right < last and (
            heaps[heap, right, 0] < heaps[heap, below, 0]
            or (heaps[heap, right, 0] == heaps[heap, below, 0] and heaps[heap, right, 1] < heaps[heap, below, 1])
        ):
            below = right
        if first < heaps[heap, below, 0] or (first == heaps[heap, below, 0] and second < heaps[heap, below, 1]):
            break
        heaps[heap, row, 0], heaps[heap, row, 1] = heaps[heap, below, 0], heaps[heap, below, 1]
        row, below = below, 2 * below + 1
    heaps[heap, row, 0], heaps[heap, row, 1] = first, second


def line(lines: Floats, row: int, column: int, size: float) -> int:
    return int(lines[row, column] + lines[row, column + 1] * size)


def begin_run(solution: Solution) -> None:
    """Clear the last run."""
    solution.counts[RUN] += 1
    solution.counts[LEGS] = 0
    for link in range(solution.uses.shape[0]):
        solution.uses[link] = 0
    for here in range(solution.free.shape[0]):
        solution.free[here] = 0


def first_after(busy: Ints, link: int, count: int, column: int, tick: int) -> int:
    """The first use of a link direction whose `column` (FROM or TO) exceeds `tick`; `count` if there is none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if busy[link, middle, column] > tick:
            high = middle
        else:
            low = middle + 1
    return low


def first_gap(busy: Ints, link: int, count: int, begin: int, ticks: int) -> int:
    """The first tick from `begin` on at which a link direction is free for `ticks`."""
    use = first_after(busy, link, count, TO, begin)
    while use < count and busy[link, use, FROM] < begin + ticks:
        begin = max(begin, busy[link, use, TO])
        use += 1
    return begin


def book(busy: Ints, uses: Ints, link: int, begin: int, end: int, leg: int) -> bool:
    """Record a use of a link direction, sorted by begin and then end; False if the table is full."""
    place = uses[link]
    if place == busy.shape[1]:
        return False
    while place > 0 and (
        busy[link, place - 1, FROM] > begin
        or (busy[link, place - 1, FROM] == begin and busy[link, place - 1, TO] > end)
    ):
        for column in range(LEG + 1):
            busy[link, place, column] = busy[link, place - 1, column]
        place -= 1
    busy[link, place, FROM], busy[link, place, TO], busy[link, place, LEG] = begin, end, leg
    uses[link] += 1
    return True


def _segment_start(arrays: InstanceArrays, solution: Solution, segment: int, size: float, ready: int) -> int:
    first, limit = int(arrays.segments[segment, FIRST_HOLD]), int(arrays.segments[segment, FIRST_HOLD + 1])
    moved = True
    while moved:
        moved = False
        for hold in range(first, limit):
            link, offset = int(arrays.holds[hold, 0]), line(arrays.holds, hold, 1, size)
            ticks = max(0, line(arrays.holds, hold, 3, size) - offset)
            begin = first_gap(solution.busy, link, solution.uses[link], ready + offset, ticks)
            if begin - offset > ready:
                ready, moved = begin - offset, limit - first > 1
    return ready


def best_route(
    arrays: InstanceArrays, solution: Solution, request: int, source: int, target: int, ready: int
) -> tuple[int, int]:
    """The route on which a request ready on one device arrives first on another, and the arrival."""
    size, kind = arrays.sizes[request], arrays.requests[request, CLASS]
    first, count = arrays.routes[kind, source, target, 0], arrays.routes[kind, source, target, 1]
    best, arrival = first, NEVER
    for route in range(first, first + count):
        time = ready
        for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
            time += line(arrays.segments, segment, 0, size)
        if time >= arrival:
            # Routes are sorted by delay: the others arrive no earlier even without contention.
            break
        time = ready
        for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
            time = _segment_start(arrays, solution, segment, size, time)
            time += line(arrays.segments, segment, 0, size)
        if time < arrival:
            best, arrival = route, time
    return best, arrival


def _send(arrays: InstanceArrays, solution: Solution, request: int, target: int, ready: int, at: int) -> int:
    """Send a request by its earliest-arriving route; return its arrival."""
    counts, legs, size = solution.counts, solution.legs, arrays.sizes[request]
    source, time, previous = solution.ops[arrays.requests[request, SOURCE], DEVICE], ready, -1
    route = arrays.routes[arrays.requests[request, CLASS], source, target, 0]
    if arrays.routes[arrays.requests[request, CLASS], source, target, 1] > 1:
        route, _ = best_route(arrays, solution, request, source, target, ready)
    for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
        leg, begin = counts[LEGS], _segment_start(arrays, solution, segment, size, time)
        if leg == legs.shape[0]:
            counts[OVERFLOW] = 1
            return time
        legs[leg, REQUEST], legs[leg, TARGET], legs[leg, SEGMENT] = request, target, segment
        legs[leg, SEGMENT_LIMIT], legs[leg, PREVIOUS] = arrays.segments_at[route + 1], previous
        legs[leg, BEGIN], legs[leg, ASKED_AT] = begin, at
        counts[LEGS], previous = leg + 1, leg
        for hold in range(int(arrays.segments[segment, FIRST_HOLD]), int(arrays.segments[segment, FIRST_HOLD + 1])):
            offset = line(arrays.holds, hold, 1, size)
            until = begin + max(offset, line(arrays.holds, hold, 3, size))
            if not book(solution.busy, solution.uses, int(arrays.holds[hold, 0]), begin + offset, until, leg):
                counts[OVERFLOW] = 1
        time = begin + line(arrays.segments, segment, 0, size)
    arrivals = solution.arrivals
    arrivals[request, target, ARRIVAL], arrivals[request, target, LAST_LEG] = time, previous
    arrivals[request, target, ARRIVAL_RUN] = counts[RUN]
    return time


def receive(arrays: InstanceArrays, solution: Solution, op: int, at: int) -> int:
    """Tick at which all inputs of an op are on its device; unsent inputs are sent now, earliest producer first."""
    ops, arrivals, lists, unsent = solution.ops, solution.arrivals, arrays.lists, solution.unsent
    here, latest, count = ops[op, DEVICE], 0, 0
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        request = lists[number]
        source = arrays.requests[request, SOURCE]
        if ops[source, DEVICE] == here:
            latest = max(latest, ops[source, END])
        elif arrivals[request, here, ARRIVAL_RUN] == solution.counts[RUN]:
            latest = max(latest, arrivals[request, here, ARRIVAL])
        else:
            push(unsent, 0, count, ops[source, END], number)
            count += 1
    while count > 0:
        ready, request = unsent[0, 0, FIRST], lists[unsent[0, 0, SECOND]]
        pop(unsent, 0, count)
        count -= 1
        latest = max(latest, _send(arrays, solution, request, here, ready, at))
    return latest


def run_all(arrays: InstanceArrays, solution: Solution, most: int) -> int:
    """The makespan of the sequence; `NEVER` if it would exceed `most`, or if a table is too small.

    The run stops once an op's start plus its path exceeds `most`. Paths date from before the last move, so a move that
    shortens a path may be lost although it is good.
    """
    ops, free, counts, makespan = solution.ops, solution.free, solution.counts, 0
    begin_run(solution)
    for at in range(solution.sequence.shape[0]):
        op = solution.sequence[at]
        here = ops[op, DEVICE]
        begin = max(free[here], receive(arrays, solution, op, at))
        for number in range(arrays.ops[op, WAITS], arrays.ops[op, WAITS + 1]):
            begin = max(begin, ops[arrays.lists[number], END])
        end = begin + arrays.ticks[op, here]
        ops[op, START], ops[op, END], free[here] = begin, end, end
        makespan = max(makespan, end)
        if end > most or begin + ops[op, PATH] > most or counts[OVERFLOW]:
            return NEVER
    return makespan
