"""The compiled kernels of the local search: run a changed sequence, take it over or leave it.

A solution is a device for every op and a sequence of all ops but sources. It is run as `in_sequence` does: each op
starts when its device is free and its inputs are there, which are sent when its turn comes, into the first gap on the
links of the route on which they arrive first. All times are ticks.

What is compiled here copies element by element: numba takes a second or more for each slice that is assigned to.
"""

from dlplacer.solvers.decode.arrays import (
    FIRST_HOLD,
    IS_SOURCE,
    READS,
    SOURCE,
    WAITS,
    InstanceArrays,
    Ints,
)
from dlplacer.solvers.decode.solution import (
    ARRIVAL,
    ARRIVAL_LEG,
    ASKED_AT,
    BEGIN,
    CRITICAL,
    DEVICE,
    END,
    EPOCH,
    FROM,
    LEG,
    LEG_PATH,
    LEGS,
    MAKESPAN,
    NEVER,
    OVERFLOW,
    PATH,
    PLACE,
    PREVIOUS,
    REQUEST,
    SEGMENT,
    SEGMENT_LIMIT,
    START,
    TARGET,
    TRIAL_ARRIVAL,
    TRIAL_END,
    TRIAL_LEGS,
    TRIAL_START,
    TRIAL_USES,
    USES,
    Solution,
)
from dlplacer.solvers.decode.transfers import (
    first_after,
    line,
    receive,
    touch,
)


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
