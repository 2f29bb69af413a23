"""Placing ops one by one: each in turn goes where it ends first, with insertion, as HEFT has it."""

from dlplacer.solvers.decode.arrays import (
    BYTES,
    CLASS,
    IS_SOURCE,
    MEMBERS,
    READS,
    SOURCE,
    UNIT,
    WAITS,
    InstanceArrays,
    Ints,
)
from dlplacer.solvers.decode.machine_code import ask
from dlplacer.solvers.decode.solution import (
    DEVICE,
    EPOCH,
    NEVER,
    OVERFLOW,
    TRIAL_ARRIVAL,
    TRIAL_END,
    TRIAL_EPOCH,
    TRIAL_LEGS,
    TRIAL_START,
    Solution,
)
from dlplacer.solvers.decode.transfers import best_route, line, receive
from dlplacer.solvers.instance.instance import FAR


def idle_ticks(arrays: InstanceArrays, request: int, source: int, target: int) -> int:
    """Ticks from one device to another by the quickest route, all alone."""
    ticks = 0
    if source != target:
        route = arrays.routes[arrays.requests[request, CLASS], source, target, 0]
        for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
            ticks += line(arrays.segments, segment, 0, arrays.sizes[request])
    return ticks


def nearest(arrays: InstanceArrays, solution: Solution, request: int, here: int, placed: Ints) -> tuple[int, int]:
    """The device from which a request is soonest on another, of those where its producer may be, and its ticks.

    The producer is a source that nobody has read so far; device -1 if it may be nowhere.
    """
    best, least = -1, FAR
    unit = arrays.ops[arrays.requests[request, SOURCE], UNIT]
    if admits(arrays, solution, unit, here, placed):
        return here, 0
    for there in range(solution.used.shape[0]):
        if admits(arrays, solution, unit, there, placed):
            ticks = idle_ticks(arrays, request, there, here)
            if best < 0 or ticks < least:
                best, least = there, ticks
    return best, least


def expect(arrays: InstanceArrays, solution: Solution, op: int, here: int, placed: Ints) -> int:
    """When all that an op reads would be on a device if it were sent now by the quickest routes, each alone."""
    ops, counts, latest = solution.ops, solution.counts, 0
    for number in range(arrays.ops[op, WAITS], arrays.ops[op, WAITS + 1]):
        latest = max(latest, ops[arrays.lists[number], TRIAL_END])
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        request = arrays.lists[number]
        source = arrays.requests[request, SOURCE]
        there = ops[source, DEVICE]
        if not placed[arrays.ops[source, UNIT]]:
            latest = max(latest, nearest(arrays, solution, request, here, placed)[1])
        elif there == here:
            latest = max(latest, ops[source, TRIAL_END])
        elif solution.arrivals[request, here, TRIAL_EPOCH] == counts[EPOCH]:
            latest = max(latest, solution.arrivals[request, here, TRIAL_ARRIVAL])
        else:
            _, arrival = best_route(arrays, solution, request, there, here, ops[source, TRIAL_END], 0)
            latest = max(latest, arrival)
    return int(latest)


def admits(arrays: InstanceArrays, solution: Solution, unit: int, device: int, placed: Ints) -> bool:
    """True if a unit may go to a device: it is there, or it is allowed there and fits."""
    if placed[unit]:
        return bool(solution.ops[arrays.lists[arrays.units[unit, MEMBERS]], DEVICE] == device)
    room = solution.used[device] + arrays.units[unit, BYTES] <= arrays.capacity[device]
    return bool(arrays.allowed[unit, device] and room)


def settle(arrays: InstanceArrays, solution: Solution, unit: int, device: int, placed: Ints) -> None:
    """Put a unit on a device, and take its memory."""
    placed[unit] = 1
    solution.used[device] += arrays.units[unit, BYTES]
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        solution.ops[arrays.lists[member], DEVICE] = device


def settle_sources(arrays: InstanceArrays, solution: Solution, op: int, device: int, placed: Ints) -> bool:
    """Put the sources that an op is the first to read as near as they may be; whether they may be anywhere."""
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        request = arrays.lists[number]
        source = arrays.requests[request, SOURCE]
        unit = arrays.ops[source, UNIT]
        if arrays.ops[source, IS_SOURCE] and not placed[unit]:
            there, _ = nearest(arrays, solution, request, device, placed)
            if there < 0:
                return False
            settle(arrays, solution, unit, there, placed)
    return True


def settle_rest(arrays: InstanceArrays, solution: Solution, placed: Ints) -> bool:
    """Put units of sources that nothing reads where most room is; whether there is any."""
    for unit in range(arrays.units.shape[0]):
        if not placed[unit]:
            best, most = -1, -1
            for here in range(solution.used.shape[0]):
                room = arrays.capacity[here] - solution.used[here]
                if admits(arrays, solution, unit, here, placed) and room > most:
                    best, most = here, room
            if best < 0:
                return False
            settle(arrays, solution, unit, best, placed)
    return True


FROM, TO, GAP_FROM, GAP_TO = range(4)
"""Columns of booked time: when a device is busy, in order, and the gaps between, the last without end."""

BUSY, GAPS = 0, 1
"""Columns of the counts of these rows."""


def _first_above(booked: Ints, here: int, count: int, column: int, tick: int) -> int:
    """The first row of a device whose column is above a tick, or `count`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if booked[here, middle, column] > tick:
            high = middle
        else:
            low = middle + 1
    return low


def _earliest(booked: Ints, counts: Ints, here: int, arrival: int, ticks: int) -> int:
    """The first moment from `arrival` on at which an op of this length fits on a device."""
    if ticks:
        row = _first_above(booked, here, counts[here, GAPS], GAP_TO, arrival)
        while max(arrival, booked[here, row, GAP_FROM]) + ticks > booked[here, row, GAP_TO]:
            row += 1
        return int(max(arrival, booked[here, row, GAP_FROM]))
    row = _first_above(booked, here, counts[here, BUSY], FROM, arrival - 1)
    return int(max(arrival, booked[here, row - 1, TO])) if row else arrival


def _make_row(booked: Ints, here: int, count: int, row: int, column: int) -> None:
    """Make room for a row in two columns of a device."""
    for at in range(count, row, -1):
        booked[here, at, column] = booked[here, at - 1, column]
        booked[here, at, column + 1] = booked[here, at - 1, column + 1]


def _book(booked: Ints, counts: Ints, here: int, begin: int, end: int) -> None:
    """Enter time that is free on a device, and leave of the gap around it what is before and after."""
    row = _first_above(booked, here, counts[here, BUSY], FROM, begin)
    while row and booked[here, row - 1, TO] > begin:
        row -= 1
    _make_row(booked, here, counts[here, BUSY], row, FROM)
    booked[here, row, FROM], booked[here, row, TO] = begin, end
    counts[here, BUSY] += 1
    gap = _first_above(booked, here, counts[here, GAPS], GAP_FROM, begin) - 1
    if gap < 0 or booked[here, gap, GAP_TO] <= begin:
        return
    first, last = booked[here, gap, GAP_FROM], booked[here, gap, GAP_TO]
    if first < begin:
        booked[here, gap, GAP_TO] = begin
        if end < last:
            _make_row(booked, here, counts[here, GAPS], gap + 1, GAP_FROM)
            booked[here, gap + 1, GAP_FROM], booked[here, gap + 1, GAP_TO] = end, last
            counts[here, GAPS] += 1
    elif end < last:
        booked[here, gap, GAP_FROM] = end
    else:
        for at in range(gap, counts[here, GAPS] - 1):
            booked[here, at, GAP_FROM] = booked[here, at + 1, GAP_FROM]
            booked[here, at, GAP_TO] = booked[here, at + 1, GAP_TO]
        counts[here, GAPS] -= 1


def insert_all(
    arrays: InstanceArrays,
    solution: Solution,
    placed: Ints,
    booked: Ints,
    rows: Ints,
) -> int:
    """The makespan when every op of the sequence in turn goes to the device on which it ends first; `NEVER` if none is.

    Each goes into the earliest gap that holds it. Ops that move together go where the first of them goes.

    Parameters
    ----------
    placed
        [unit] → 0, for use inside.
    booked, rows
        [device, row, column] and [device, column], for use inside: with room for a row more than there are ops.
    """
    ops, sequence, counts, used = solution.ops, solution.sequence, solution.counts, solution.used
    counts[EPOCH] += 1
    counts[TRIAL_LEGS] = 0
    for here in range(used.shape[0]):
        used[here], rows[here, BUSY], rows[here, GAPS] = 0, 0, 1
        booked[here, 0, GAP_FROM], booked[here, 0, GAP_TO] = 0, NEVER
    makespan = 0
    for at in range(sequence.shape[0]):
        op = sequence[at]
        ask()
        unit, best, soonest, first = arrays.ops[op, UNIT], -1, NEVER, 0
        for here in range(used.shape[0]):
            if admits(arrays, solution, unit, here, placed):
                arrival = expect(arrays, solution, op, here, placed)
                begin = _earliest(booked, rows, here, arrival, arrays.ticks[op, here])
                end = begin + arrays.ticks[op, here]
                if end < soonest:
                    best, soonest, first = here, end, begin
        if best < 0:
            return NEVER
        if not placed[unit]:
            settle(arrays, solution, unit, best, placed)
        if not settle_sources(arrays, solution, op, best, placed):
            return NEVER
        arrival = max(first, receive(arrays, solution, op, 0, 0, at))
        begin = _earliest(booked, rows, best, arrival, arrays.ticks[op, best])
        end = begin + arrays.ticks[op, best]
        _book(booked, rows, best, begin, end)
        ops[op, TRIAL_START], ops[op, TRIAL_END] = begin, end
        makespan = max(makespan, end)
        if counts[OVERFLOW]:
            return NEVER
    return makespan if settle_rest(arrays, solution, placed) else NEVER
