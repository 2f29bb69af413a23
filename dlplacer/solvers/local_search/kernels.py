"""The compiled kernels of the local search: run a changed sequence, take it over or leave it.

A solution is a device for every op and a sequence of all ops but sources. It is run as `in_sequence` does: each op
starts when its device is free and its inputs are there, which are sent when its turn comes, into the first gap on the
links of the route on which they arrive first. All times are ticks.

What is compiled here copies element by element: numba takes a second or more for each slice that is assigned to.
"""

from typing import NamedTuple

from dlplacer.solvers.local_search.arrays import (
    CLASS,
    FIRST_HOLD,
    IS_SOURCE,
    READS,
    SOURCE,
    WAITS,
    Floats,
    InstanceArrays,
    Ints,
)
from dlplacer.solvers.local_search.machine_code import compiled, inner

DEVICE, PLACE, PATH, START, END, TRIAL_START, TRIAL_END, PATH_BEFORE = range(8)
"""Columns of `Solution.ops`: device, place in the sequence (-1 for sources), ticks from its start to the end of the
schedule along the longest path, its times, its times in the trial, and its path before it was moved."""

ARRIVAL, ARRIVAL_LEG, TRIAL_ARRIVAL, TRIAL_LEG, TRIAL_EPOCH = range(5)
"""`Solution.arrivals`: when a request is on a device and its first leg (-1: never), and the same of the trial in which
it is."""

REQUEST, TARGET, SEGMENT, BEGIN, ASKED_AT, LEG_PATH = range(6)
"""`Solution.legs`: request, device, route segment, start, place whose op asked for it, longest path from its start."""

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


@inner
def line(lines: Floats, row: int, column: int, size: float) -> int:
    return int(lines[row, column] + lines[row, column + 1] * size)


@inner
def _touch(busy: Ints, links: Ints, link: int, base: int, epoch: int) -> None:
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


@inner
def _after(busy: Ints, which: int, link: int, count: int, column: int, tick: int) -> int:
    """The first use of a link direction whose column is above a tick, or `count`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if busy[which, link, middle, column] > tick:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def _book(busy: Ints, links: Ints, link: int, begin: int, end: int, leg: int) -> bool:
    """Enter a use of a link direction; whether there was room in the table."""
    place = links[link, TRIAL_USES]
    if end <= begin:
        return True
    if place == busy.shape[2]:
        return False
    while place > 0 and busy[1, link, place - 1, FROM] > begin:
        for column in range(3):
            busy[1, link, place, column] = busy[1, link, place - 1, column]
        place -= 1
    busy[1, link, place, FROM], busy[1, link, place, TO], busy[1, link, place, LEG] = begin, end, leg
    links[link, TRIAL_USES] += 1
    return True


@inner
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
    moved = True
    while moved:
        moved = False
        for hold in range(int(segments[segment, FIRST_HOLD]), int(segments[segment, FIRST_HOLD + 1])):
            link, offset = int(holds[hold, 0]), line(holds, hold, 1, size)
            ticks = line(holds, hold, 3, size) - offset
            if ticks <= 0:
                continue
            _touch(busy, links, link, base, epoch)
            begin, count = ready + offset, links[link, TRIAL_USES]
            use = _after(busy, 1, link, count, TO, begin)
            while use < count and busy[1, link, use, FROM] < begin + ticks:
                begin = max(begin, busy[1, link, use, TO])
                use += 1
            if begin - offset > ready:
                ready, moved = begin - offset, True
    return ready


@inner
def _send(arrays: InstanceArrays, solution: Solution, request: int, target: int, ready: int, base: int, at: int) -> int:
    """Send a request by the route on which it arrives first; when that is."""
    segments, holds, busy, links, counts = arrays.segments, arrays.holds, solution.busy, solution.links, solution.counts
    legs = solution.legs
    size, source = arrays.sizes[request], solution.ops[arrays.requests[request, SOURCE], DEVICE]
    kind = arrays.requests[request, CLASS]
    first, count = arrays.routes[kind, source, target, 0], arrays.routes[kind, source, target, 1]
    best, arrival, epoch = first, NEVER, counts[EPOCH]
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
    solution.arrivals[request, target, TRIAL_LEG] = counts[TRIAL_LEGS]
    time = ready
    for segment in range(arrays.segments_at[best], arrays.segments_at[best + 1]):
        begin = segment_start(segments, holds, busy, links, segment, size, time, base, epoch)
        leg = counts[TRIAL_LEGS]
        if leg == legs.shape[1]:
            counts[OVERFLOW] = 1
            return time
        legs[1, leg, REQUEST], legs[1, leg, TARGET], legs[1, leg, SEGMENT] = request, target, segment
        legs[1, leg, BEGIN], legs[1, leg, ASKED_AT] = begin, at
        counts[TRIAL_LEGS] = leg + 1
        for hold in range(int(segments[segment, FIRST_HOLD]), int(segments[segment, FIRST_HOLD + 1])):
            offset, until = line(holds, hold, 1, size), line(holds, hold, 3, size)
            if not _book(busy, links, int(holds[hold, 0]), begin + offset, begin + until, leg):
                counts[OVERFLOW] = 1
        time = begin + line(segments, segment, 0, size)
    solution.arrivals[request, target, TRIAL_ARRIVAL] = time
    solution.arrivals[request, target, TRIAL_EPOCH] = epoch
    return time


@inner
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


@inner
def receive(arrays: InstanceArrays, solution: Solution, op: int, first: int, base: int, at: int) -> int:
    """When all that an op reads is on its device, sent now if it has not been, by the ends of the producers."""
    ops, arrivals, lists = solution.ops, solution.arrivals, arrays.lists
    here, epoch, latest = ops[op, DEVICE], solution.counts[EPOCH], 0
    while True:
        request, ready = -1, NEVER
        for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
            candidate = lists[number]
            source = arrays.requests[candidate, SOURCE]
            end = ops[source, TRIAL_END] if ops[source, PLACE] >= first else ops[source, END]
            if ops[source, DEVICE] == here:
                latest = max(latest, end)
            elif arrivals[candidate, here, TRIAL_EPOCH] == epoch:
                latest = max(latest, arrivals[candidate, here, TRIAL_ARRIVAL])
            elif 0 <= arrivals[candidate, here, ARRIVAL_LEG] < base:
                latest = max(latest, arrivals[candidate, here, ARRIVAL])
            elif end < ready:
                request, ready = candidate, end
        if request < 0:
            return latest
        latest = max(latest, _send(arrays, solution, request, here, ready, base, at))


@compiled
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


@compiled
def take_over(arrays: InstanceArrays, solution: Solution, first: int, makespan: int) -> None:
    """Make the trial, complete from place `first` on, the solution."""
    ops, arrivals, legs, links, counts = solution.ops, solution.arrivals, solution.legs, solution.links, solution.counts
    busy = solution.busy
    base = _base(legs, counts[LEGS], first)
    for leg in range(base, counts[LEGS]):
        arrivals[legs[0, leg, REQUEST], legs[0, leg, TARGET], ARRIVAL_LEG] = -1
    for link in range(links.shape[0]):
        _touch(busy, links, link, base, counts[EPOCH])
        count = links[link, TRIAL_USES]
        links[link, USES] = count
        for use in range(count):
            for column in range(busy.shape[3]):
                busy[0, link, use, column] = busy[1, link, use, column]
    for leg in range(base, counts[TRIAL_LEGS]):
        for column in range(legs.shape[2]):
            legs[0, leg, column] = legs[1, leg, column]
        request, target = legs[1, leg, REQUEST], legs[1, leg, TARGET]
        arrivals[request, target, ARRIVAL] = arrivals[request, target, TRIAL_ARRIVAL]
        arrivals[request, target, ARRIVAL_LEG] = arrivals[request, target, TRIAL_LEG]
    counts[LEGS] = counts[TRIAL_LEGS]
    for at in range(first, solution.sequence.shape[0]):
        op = solution.sequence[at]
        ops[op, START], ops[op, END] = ops[op, TRIAL_START], ops[op, TRIAL_END]
    counts[MAKESPAN] = makespan
    _find_paths(arrays, solution)


@inner
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
            while (
                last + 1 < counts[LEGS] and legs[0, last + 1, REQUEST] == request and legs[0, last + 1, TARGET] == here
            ):
                last += 1
            legs[0, last, LEG_PATH] = max(legs[0, last, LEG_PATH], path)
        while leg >= 0 and legs[0, leg, ASKED_AT] == at:
            request, segment, begin = legs[0, leg, REQUEST], legs[0, leg, SEGMENT], legs[0, leg, BEGIN]
            size, source = arrays.sizes[request], arrays.requests[request, SOURCE]
            path = legs[0, leg, LEG_PATH] + line(segments, segment, 0, size)
            for hold in range(int(segments[segment, FIRST_HOLD]), int(segments[segment, FIRST_HOLD + 1])):
                link, offset, until = int(holds[hold, 0]), line(holds, hold, 1, size), line(holds, hold, 3, size)
                use = _after(solution.busy, 0, link, solution.links[link, USES], FROM, begin + offset)
                if use < solution.links[link, USES]:
                    path = max(path, until - offset + legs[0, solution.busy[0, link, use, LEG], LEG_PATH])
            legs[0, leg, LEG_PATH] = path
            if begin + path >= makespan:
                solution.critical[critical] = op
                critical += 1
                if not arrays.ops[source, IS_SOURCE]:
                    solution.critical[critical] = source
                    critical += 1
            if leg > solution.arrivals[request, here, ARRIVAL_LEG]:
                legs[0, leg - 1, LEG_PATH] = max(legs[0, leg - 1, LEG_PATH], path)
            else:
                ops[source, PATH] = max(ops[source, PATH], path)
            leg -= 1
    counts[CRITICAL] = critical
