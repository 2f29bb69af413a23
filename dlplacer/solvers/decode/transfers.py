"""Transfers in the compiled kernels: each into the first gap on the links of its route."""

from dlplacer.solvers.decode.arrays import (
    CLASS,
    FIRST_HOLD,
    READS,
    SOURCE,
    Floats,
    InstanceArrays,
    Ints,
)
from dlplacer.solvers.decode.solution import (
    ARRIVAL,
    ARRIVAL_LEG,
    ASKED_AT,
    BEGIN,
    DEVICE,
    END,
    EPOCH,
    FROM,
    LEG,
    NEVER,
    OVERFLOW,
    PLACE,
    PREVIOUS,
    REQUEST,
    SEGMENT,
    SEGMENT_LIMIT,
    TARGET,
    TO,
    TRIAL_ARRIVAL,
    TRIAL_END,
    TRIAL_EPOCH,
    TRIAL_LEGS,
    TRIAL_USES,
    USES,
    USES_EPOCH,
    Solution,
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


def _book(busy: Ints, links: Ints, link: int, begin: int, end: int, leg: int) -> bool:
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
            begin, count = ready + offset, links[link, TRIAL_USES]
            use = first_after(busy, 1, link, count, TO, begin)
            while use < count and busy[1, link, use, FROM] < begin + ticks:
                begin = max(begin, busy[1, link, use, TO])
                use += 1
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
        if not _book(busy, links, int(holds[hold, 0]), begin + offset, begin + until, leg):
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
