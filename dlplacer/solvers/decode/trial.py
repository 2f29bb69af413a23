"""A schedule in the making: its tables, transfers into the first gaps of links, and runs of a changed sequence.

A solution is a device for every op and a sequence of all ops but sources. It is run as `in_sequence` does: each op
starts when its device is free and its inputs are there, which are sent when its turn comes, into the first gap on the
links of the route on which they arrive first. All times are ticks. A trial is a changed run from some place on.

What is compiled here copies element by element: numba takes a second or more for each slice that is assigned to.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dlplacer.problem.route_table import ScheduledTransfer
from dlplacer.solvers.decode.arrays import (
    BYTES,
    CLASS,
    FIRST_HOLD,
    IS_SOURCE,
    MEMBERS,
    READS,
    SOURCE,
    WAITS,
    Floats,
    InstanceArrays,
    Ints,
    Tables,
)

DEVICE, PLACE, PATH, START, END, TRIAL_START, TRIAL_END, DEVICE_BEFORE, PATH_BEFORE = range(9)
"""Columns of `Solution.ops`: device, place in the sequence (-1 for sources), ticks from its start to the end of the
schedule along the longest path, its times, its times in the trial, and its device and its path before it was moved."""

ARRIVAL, ARRIVAL_LEG, TRIAL_ARRIVAL, TRIAL_EPOCH = range(4)
"""`Solution.arrivals`: when a request is on a device and its last leg (-1: never), and when it is in the trial of which
epoch."""

REQUEST, TARGET, SEGMENT, SEGMENT_LIMIT, BEGIN, ASKED_AT, LEG_PATH, PREVIOUS = range(8)
"""`Solution.legs`: request, device, route segment, the first one that is not of its route, start, place whose op asked
for it, longest path from its start, the leg before it on its route (-1: none)."""

FROM, TO, LEG = range(3)
"""`Solution.busy`: a use of a link direction."""

USES, TRIAL_USES, USES_EPOCH = range(3)
"""`Solution.links`: number of uses, in the trial too."""

LEGS, TRIAL_LEGS, EPOCH, MAKESPAN, CRITICAL, OVERFLOW = range(6)
"""`Solution.counts`; `OVERFLOW` is 1 if a table was too small."""

NOW, TRIAL = 0, 1
"""First index of `Solution.legs` and `Solution.busy`."""

NEVER = 2**62


class Solution(NamedTuple):
    """Devices and sequence, the run of them, and the run of a trial from some place on.

    Attributes
    ----------
    sequence
        The ops in turn.
    critical
        Ops at which a critical path may be shortened.
    used, free
        [device] → bytes, and a vector for use inside.
    unsent
        What an op reads and is still to be sent, a heap for use inside: end of the producer, place in the op's list.
    """

    ops: Ints
    sequence: Ints
    arrivals: Ints
    legs: Ints
    busy: Ints
    links: Ints
    critical: Ints
    used: Ints
    free: Ints
    counts: Ints
    unsent: Ints


_FIRST_WIDTH = 64
"""Uses of a link direction for which tables have room at first."""


def filled(
    tables: Tables, devices: Ints, sequence: Ints, build: Callable[[Solution], int], width: int = 0
) -> tuple[Solution, int]:
    """Tables with the trial of all that `build` makes, and its makespan; larger ones until they hold it.

    Parameters
    ----------
    width
        Uses of a link direction for which there shall be room at least.
    """
    width = max(width, _FIRST_WIDTH)
    while True:
        solution = _empty(tables, devices, sequence, width)
        makespan = build(solution)
        if not solution.counts[OVERFLOW]:
            return solution, int(makespan)
        width *= 2


def width_of(solution: Solution) -> int:
    """Uses of a link direction for which there is room."""
    return int(solution.busy.shape[2])


def transfers(tables: Tables, solution: Solution) -> Iterator[ScheduledTransfer]:
    """The transfers of a trial of all; none where there is no traffic."""
    traffic = tables.instance.traffic
    if traffic is None:
        return
    rows = solution.legs[TRIAL, : solution.counts[TRIAL_LEGS]].tolist()
    route_of = np.searchsorted(tables.arrays.segments_at, [row[SEGMENT] for row in rows], side="right") - 1
    starts: list[tuple[int, ...]] = []
    for leg, row in enumerate(rows):
        starts.append((*(starts[row[PREVIOUS]] if row[PREVIOUS] >= 0 else ()), row[BEGIN]))
        hops = [segment.hops for segment in tables.routes[route_of[leg]]]
        if hops and row[SEGMENT] + 1 == row[SEGMENT_LIMIT]:
            route = traffic.routes.along(hops, traffic.requests[row[REQUEST]].size)
            yield ScheduledTransfer(row[REQUEST], row[TARGET], route, starts[leg])


def _empty(tables: Tables, devices: Ints, sequence: Ints, width: int) -> Solution:
    """Tables for a solution that has not been run, with room for `width` uses of every link direction."""
    arrays, (count, device_count) = tables.arrays, tables.arrays.ticks.shape
    resources = int(arrays.holds[:, 0].max(initial=-1)) + 1
    table = np.zeros((count, PATH_BEFORE + 1), np.int64)
    table[:, DEVICE], table[:, PLACE] = devices, -1
    table[sequence, PLACE] = np.arange(len(sequence))
    used = np.zeros(device_count, np.int64)
    first = arrays.lists[arrays.units[:, MEMBERS]]
    np.add.at(used, devices[first], arrays.units[:, BYTES])
    arrivals = np.zeros((len(arrays.requests), device_count, TRIAL_EPOCH + 1), np.int64)
    arrivals[:, :, ARRIVAL_LEG] = -1
    most_legs = width * (resources + len(arrays.requests) // _FIRST_WIDTH + 1)
    return Solution(
        table,
        sequence.copy(),
        arrivals,
        np.zeros((2, most_legs, PREVIOUS + 1), np.int64),
        np.zeros((2, resources, width, 3), np.int64),
        np.zeros((resources, 3), np.int64),
        np.zeros(2 * most_legs + len(sequence), np.int64),
        used,
        np.zeros(device_count, np.int64),
        np.zeros(6, np.int64),
        np.zeros((1, int((arrays.ops[:, READS + 1] - arrays.ops[:, READS]).max(initial=0)), 2), np.int64),
    )


FIRST, SECOND = 0, 1
"""Columns of a row: what it is sorted by first, and then."""


def push(heaps: Ints, heap: int, count: int, first: int, second: int) -> None:
    """Add to a heap of so many rows, the least first."""
    row = count
    while row > 0:
        above = (row - 1) >> 1
        if heaps[heap, above, 0] < first or (heaps[heap, above, 0] == first and heaps[heap, above, 1] < second):
            break
        heaps[heap, row, 0], heaps[heap, row, 1] = heaps[heap, above, 0], heaps[heap, above, 1]
        row = above
    heaps[heap, row, 0], heaps[heap, row, 1] = first, second


def pop(heaps: Ints, heap: int, count: int) -> None:
    """Take the first row out of a heap of so many."""
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


def touch(busy: Ints, links: Ints, link: int, base: int, epoch: int) -> None:
    """Make the trial's view of a link direction: what legs before `base` do there."""
    if links[link, USES_EPOCH] == epoch:
        return
    kept = 0
    for use in range(links[link, USES]):
        if busy[0, link, use, LEG] < base:
            busy[1, link, kept, FROM] = busy[0, link, use, FROM]
            busy[1, link, kept, TO] = busy[0, link, use, TO]
            busy[1, link, kept, LEG] = busy[0, link, use, LEG]
            kept += 1
    links[link, TRIAL_USES], links[link, USES_EPOCH] = kept, epoch


def first_after(busy: Ints, which: int, link: int, count: int, column: int, tick: int) -> int:
    """The first use of a link direction whose column is above a tick, or `count`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if busy[which, link, middle, column] > tick:
            high = middle
        else:
            low = middle + 1
    return low


def first_gap(busy: Ints, link: int, count: int, begin: int, ticks: int) -> int:
    """The first moment from `begin` on from which a link direction is free for so long, in the trial."""
    use = first_after(busy, 1, link, count, TO, begin)
    while use < count and busy[1, link, use, FROM] < begin + ticks:
        begin = max(begin, busy[1, link, use, TO])
        use += 1
    return begin


def book(busy: Ints, links: Ints, link: int, begin: int, end: int, leg: int) -> bool:
    """Enter a use of a link direction; whether there was room in the table.

    Uses are in the order of their begins, and of their ends: one of no time comes before one that begins with it.
    """
    place = links[link, TRIAL_USES]
    if place == busy.shape[2]:
        return False
    while place > 0 and (
        busy[1, link, place - 1, FROM] > begin
        or (busy[1, link, place - 1, FROM] == begin and busy[1, link, place - 1, TO] > end)
    ):
        for column in range(3):
            busy[1, link, place, column] = busy[1, link, place - 1, column]
        place -= 1
    busy[1, link, place, FROM], busy[1, link, place, TO], busy[1, link, place, LEG] = begin, end, leg
    links[link, TRIAL_USES] += 1
    return True


def segment_start(
    segments: Floats,
    holds: Floats,
    busy: Ints,
    links: Ints,
    segment: int,
    size: float,
    ready: int,
    base: int,
    epoch: int,
) -> int:
    """When a route segment can start at the earliest."""
    first, limit, moved = int(segments[segment, FIRST_HOLD]), int(segments[segment, FIRST_HOLD + 1]), True
    while moved:
        moved = False
        for hold in range(first, limit):
            link, offset = int(holds[hold, 0]), line(holds, hold, 1, size)
            ticks = max(0, line(holds, hold, 3, size) - offset)
            touch(busy, links, link, base, epoch)
            begin = first_gap(busy, link, links[link, TRIAL_USES], ready + offset, ticks)
            if begin - offset > ready:
                ready, moved = begin - offset, limit - first > 1
    return ready


def _send_segment(
    arrays: InstanceArrays,
    solution: Solution,
    request: int,
    target: int,
    segment: int,
    limit: int,
    previous: int,
    ready: int,
    base: int,
    at: int,
) -> int:
    """Send a request over a segment of a route, after the leg before it; when it has come over it."""
    segments, holds, busy, links, counts = arrays.segments, arrays.holds, solution.busy, solution.links, solution.counts
    legs, size, leg, epoch = solution.legs, arrays.sizes[request], counts[TRIAL_LEGS], counts[EPOCH]
    begin = segment_start(segments, holds, busy, links, segment, size, ready, base, epoch)
    if leg == legs.shape[1]:
        counts[OVERFLOW] = 1
        return begin
    legs[1, leg, REQUEST], legs[1, leg, TARGET], legs[1, leg, SEGMENT] = request, target, segment
    legs[1, leg, SEGMENT_LIMIT], legs[1, leg, PREVIOUS] = limit, previous
    legs[1, leg, BEGIN], legs[1, leg, ASKED_AT] = begin, at
    counts[TRIAL_LEGS] = leg + 1
    for hold in range(int(segments[segment, FIRST_HOLD]), int(segments[segment, FIRST_HOLD + 1])):
        offset = line(holds, hold, 1, size)
        until = max(offset, line(holds, hold, 3, size))
        if not book(busy, links, int(holds[hold, 0]), begin + offset, begin + until, leg):
            counts[OVERFLOW] = 1
    time = begin + line(segments, segment, 0, size)
    arrivals = solution.arrivals
    if segment + 1 == limit:
        arrivals[request, target, TRIAL_ARRIVAL], arrivals[request, target, TRIAL_EPOCH] = time, epoch
    return time


def best_route(
    arrays: InstanceArrays, solution: Solution, request: int, source: int, target: int, ready: int, base: int
) -> tuple[int, int]:
    """The route on which a request that is ready on one device arrives on another first, and when."""
    segments, holds, busy, links = arrays.segments, arrays.holds, solution.busy, solution.links
    size, kind, epoch = arrays.sizes[request], arrays.requests[request, CLASS], solution.counts[EPOCH]
    first, count = arrays.routes[kind, source, target, 0], arrays.routes[kind, source, target, 1]
    best, arrival = first, NEVER
    for route in range(first, first + count):
        time = ready
        for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
            time += line(segments, segment, 0, size)
        if time >= arrival:
            # Routes come by rising delay: the others arrive no earlier even where nothing is in their way.
            break
        time = ready
        for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
            time = segment_start(segments, holds, busy, links, segment, size, time, base, epoch)
            time += line(segments, segment, 0, size)
        if time < arrival:
            best, arrival = route, time
    return best, arrival


def _send(arrays: InstanceArrays, solution: Solution, request: int, target: int, ready: int, base: int, at: int) -> int:
    """Send a request by the route on which it arrives first; when it arrives."""
    counts, source = solution.counts, solution.ops[arrays.requests[request, SOURCE], DEVICE]
    kind, time, leg = arrays.requests[request, CLASS], ready, -1
    best = arrays.routes[kind, source, target, 0]
    if arrays.routes[kind, source, target, 1] > 1:
        best, _ = best_route(arrays, solution, request, source, target, ready, base)
    for segment in range(arrays.segments_at[best], arrays.segments_at[best + 1]):
        time = _send_segment(
            arrays, solution, request, target, segment, arrays.segments_at[best + 1], leg, time, base, at
        )
        leg = counts[TRIAL_LEGS] - 1
    return time


def receive(arrays: InstanceArrays, solution: Solution, op: int, first: int, base: int, at: int) -> int:
    """When all that an op reads is on its device, sent now if it has not been, by the ends of the producers."""
    ops, arrivals, lists, unsent = solution.ops, solution.arrivals, arrays.lists, solution.unsent
    here, epoch, latest, count = ops[op, DEVICE], solution.counts[EPOCH], 0, 0
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        request = lists[number]
        source = arrays.requests[request, SOURCE]
        end = ops[source, TRIAL_END] if ops[source, PLACE] >= first else ops[source, END]
        if ops[source, DEVICE] == here:
            latest = max(latest, end)
        elif arrivals[request, here, TRIAL_EPOCH] == epoch:
            latest = max(latest, arrivals[request, here, TRIAL_ARRIVAL])
        elif 0 <= arrivals[request, here, ARRIVAL_LEG] < base:
            latest = max(latest, arrivals[request, here, ARRIVAL])
        else:
            push(unsent, 0, count, end, number)
            count += 1
    while count > 0:
        ready, request = unsent[0, 0, FIRST], lists[unsent[0, 0, SECOND]]
        pop(unsent, 0, count)
        count -= 1
        latest = max(latest, _send(arrays, solution, request, here, ready, base, at))
    return latest


def _base(legs: Ints, count: int, first: int) -> int:
    """The first leg that an op from place `first` on asks for."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if legs[0, middle, ASKED_AT] >= first:
            high = middle
        else:
            low = middle + 1
    return low


def run_from(arrays: InstanceArrays, solution: Solution, first: int, most: int) -> int:
    """The makespan of the sequence from place `first` on, run as the trial; `NEVER` if it gets above `most`.

    It is given up as soon as an op starts so late that, with what follows it now, it would end above `most`. Where the
    change also shortens what follows, a good trial may be lost so.
    """
    ops, sequence, free, counts = solution.ops, solution.sequence, solution.free, solution.counts
    counts[EPOCH] += 1
    base = _base(solution.legs, counts[LEGS], first)
    counts[TRIAL_LEGS] = base
    makespan = 0
    for here in range(free.shape[0]):
        free[here] = 0
    for at in range(first):
        op = sequence[at]
        free[ops[op, DEVICE]] = ops[op, END]
        makespan = max(makespan, ops[op, END])
    for at in range(first, sequence.shape[0]):
        op = sequence[at]
        here = ops[op, DEVICE]
        begin = max(free[here], receive(arrays, solution, op, first, base, at))
        for number in range(arrays.ops[op, WAITS], arrays.ops[op, WAITS + 1]):
            source = arrays.lists[number]
            begin = max(begin, ops[source, TRIAL_END] if ops[source, PLACE] >= first else ops[source, END])
        end = begin + arrays.ticks[op, here]
        ops[op, TRIAL_START], ops[op, TRIAL_END], free[here] = begin, end, end
        makespan = max(makespan, end)
        if end > most or begin + ops[op, PATH] > most or counts[OVERFLOW]:
            return NEVER
    return makespan


def take_over(arrays: InstanceArrays, solution: Solution, first: int, makespan: int) -> None:
    """Make the trial, complete from place `first` on, the solution."""
    ops, arrivals, legs, links, counts = solution.ops, solution.arrivals, solution.legs, solution.links, solution.counts
    busy = solution.busy
    base = _base(legs, counts[LEGS], first)
    for leg in range(counts[LEGS] - 1, base - 1, -1):
        request, target = legs[0, leg, REQUEST], legs[0, leg, TARGET]
        arrivals[request, target, ARRIVAL_LEG] = -1
    for link in range(links.shape[0]):
        touch(busy, links, link, base, counts[EPOCH])
        count = links[link, TRIAL_USES]
        links[link, USES] = count
        for use in range(count):
            for column in range(busy.shape[3]):
                busy[0, link, use, column] = busy[1, link, use, column]
    for leg in range(base, counts[TRIAL_LEGS]):
        for column in range(legs.shape[2]):
            legs[0, leg, column] = legs[1, leg, column]
        request, target = legs[1, leg, REQUEST], legs[1, leg, TARGET]
        if legs[1, leg, SEGMENT] + 1 == legs[1, leg, SEGMENT_LIMIT]:
            arrivals[request, target, ARRIVAL] = arrivals[request, target, TRIAL_ARRIVAL]
            arrivals[request, target, ARRIVAL_LEG] = leg
    counts[LEGS] = counts[TRIAL_LEGS]
    for at in range(first, solution.sequence.shape[0]):
        op = solution.sequence[at]
        ops[op, START], ops[op, END] = ops[op, TRIAL_START], ops[op, TRIAL_END]
    counts[MAKESPAN] = makespan
    _find_paths(arrays, solution)


def _find_paths(arrays: InstanceArrays, solution: Solution) -> None:
    """Paths to the end of the schedule, and the ops on critical ones: also readers and writers of what is sent there.

    Legs are gone through backwards in the order in which they were planned; a leg in a gap that comes before one that
    was planned earlier misses that one's path, so some paths are too short.
    """
    ops, legs, counts, after = solution.ops, solution.legs, solution.counts, solution.free
    segments, holds, lists = arrays.segments, arrays.holds, arrays.lists
    makespan, leg, critical = counts[MAKESPAN], counts[LEGS] - 1, 0
    for here in range(after.shape[0]):
        after[here] = 0
    for op in range(ops.shape[0]):
        ops[op, PATH] = 0
    for earlier in range(leg + 1):
        legs[0, earlier, LEG_PATH] = 0
    for at in range(solution.sequence.shape[0] - 1, -1, -1):
        op = solution.sequence[at]
        here = ops[op, DEVICE]
        path = max(ops[op, PATH], after[here]) + arrays.ticks[op, here]
        ops[op, PATH], after[here] = path, path
        if ops[op, START] + path >= makespan and arrays.ticks[op, here]:
            solution.critical[critical] = op
            critical += 1
        for number in range(arrays.ops[op, WAITS], arrays.ops[op, WAITS + 1]):
            ops[lists[number], PATH] = max(ops[lists[number], PATH], path)
        for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
            request = lists[number]
            source = arrays.requests[request, SOURCE]
            if ops[source, DEVICE] == here:
                ops[source, PATH] = max(ops[source, PATH], path)
                continue
            last = solution.arrivals[request, here, ARRIVAL_LEG]
            legs[0, last, LEG_PATH] = max(legs[0, last, LEG_PATH], path)
        while leg >= 0 and legs[0, leg, ASKED_AT] == at:
            request, segment, begin = legs[0, leg, REQUEST], legs[0, leg, SEGMENT], legs[0, leg, BEGIN]
            size, source = arrays.sizes[request], arrays.requests[request, SOURCE]
            path = legs[0, leg, LEG_PATH] + line(segments, segment, 0, size)
            for hold in range(int(segments[segment, FIRST_HOLD]), int(segments[segment, FIRST_HOLD + 1])):
                link, offset, until = int(holds[hold, 0]), line(holds, hold, 1, size), line(holds, hold, 3, size)
                use = first_after(solution.busy, 0, link, solution.links[link, USES], FROM, begin + offset)
                if use < solution.links[link, USES]:
                    path = max(path, until - offset + legs[0, solution.busy[0, link, use, LEG], LEG_PATH])
            legs[0, leg, LEG_PATH] = path
            if begin + path >= makespan:
                solution.critical[critical] = op
                critical += 1
                if not arrays.ops[source, IS_SOURCE]:
                    solution.critical[critical] = source
                    critical += 1
            previous = legs[0, leg, PREVIOUS]
            if previous >= 0:
                legs[0, previous, LEG_PATH] = max(legs[0, previous, LEG_PATH], path)
            else:
                ops[source, PATH] = max(ops[source, PATH], path)
            leg -= 1
    counts[CRITICAL] = critical
