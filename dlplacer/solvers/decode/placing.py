"""Placing ops one by one: what is expected to arrive, and the memory that is taken."""

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
from dlplacer.solvers.decode.solution import (
    DEVICE,
    EPOCH,
    TRIAL_ARRIVAL,
    TRIAL_END,
    TRIAL_EPOCH,
    Solution,
)
from dlplacer.solvers.decode.transfers import best_route, line
from dlplacer.solvers.instance.instance import FAR


def idle_ticks(arrays: InstanceArrays, request: int, source: int, target: int) -> int:
    """Ticks from one device to another by the quickest route, all alone."""
    ticks = 0
    if source != target:
        route = arrays.routes[arrays.requests[request, CLASS], source, target, 0]
        for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
            ticks += line(arrays.segments, segment, 0, arrays.sizes[request])
    return ticks


def nearest(
    arrays: InstanceArrays, solution: Solution, request: int, here: int, usable: Ints, placed: Ints
) -> tuple[int, int]:
    """The device from which a request is soonest on another, of those where its producer may be, and its ticks.

    The producer is a source that nobody has read so far; device -1 if it may be nowhere.
    """
    best, least = -1, FAR
    unit = arrays.ops[arrays.requests[request, SOURCE], UNIT]
    if admits(arrays, solution, unit, here, usable, placed):
        return here, 0
    for there in range(usable.shape[0]):
        if admits(arrays, solution, unit, there, usable, placed):
            ticks = idle_ticks(arrays, request, there, here)
            if best < 0 or ticks < least:
                best, least = there, ticks
    return best, least


def expect(
    arrays: InstanceArrays, solution: Solution, op: int, here: int, usable: Ints, placed: Ints
) -> tuple[int, int]:
    """When all that an op reads would be on a device if it were sent now by the quickest routes, each alone.

    The second value is how long it would be on its way in all if nothing else were.
    """
    ops, counts, latest, sent = solution.ops, solution.counts, 0, 0
    for number in range(arrays.ops[op, WAITS], arrays.ops[op, WAITS + 1]):
        latest = max(latest, ops[arrays.lists[number], TRIAL_END])
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        request = arrays.lists[number]
        source = arrays.requests[request, SOURCE]
        there = ops[source, DEVICE]
        if not placed[arrays.ops[source, UNIT]]:
            latest = max(latest, nearest(arrays, solution, request, here, usable, placed)[1])
        elif there == here:
            latest = max(latest, ops[source, TRIAL_END])
        elif solution.arrivals[request, here, TRIAL_EPOCH] == counts[EPOCH]:
            latest = max(latest, solution.arrivals[request, here, TRIAL_ARRIVAL])
        else:
            _, arrival = best_route(arrays, solution, request, there, here, ops[source, TRIAL_END], 0)
            sent += idle_ticks(arrays, request, there, here)
            latest = max(latest, arrival)
    return latest, sent


def admits(arrays: InstanceArrays, solution: Solution, unit: int, device: int, usable: Ints, placed: Ints) -> bool:
    """True if a unit may go to a device: it is there, or it is allowed there and fits."""
    if placed[unit]:
        return bool(solution.ops[arrays.lists[arrays.units[unit, MEMBERS]], DEVICE] == device)
    room = solution.used[device] + arrays.units[unit, BYTES] <= arrays.capacity[device]
    return bool(usable[device] and arrays.allowed[unit, device] and room)


def settle(arrays: InstanceArrays, solution: Solution, unit: int, device: int, placed: Ints) -> None:
    """Put a unit on a device, and take its memory."""
    placed[unit] = 1
    solution.used[device] += arrays.units[unit, BYTES]
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        solution.ops[arrays.lists[member], DEVICE] = device


def settle_sources(
    arrays: InstanceArrays, solution: Solution, op: int, device: int, usable: Ints, placed: Ints
) -> bool:
    """Put the sources that an op is the first to read as near as they may be; whether they may be anywhere."""
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        request = arrays.lists[number]
        source = arrays.requests[request, SOURCE]
        unit = arrays.ops[source, UNIT]
        if arrays.ops[source, IS_SOURCE] and not placed[unit]:
            there, _ = nearest(arrays, solution, request, device, usable, placed)
            if there < 0:
                return False
            settle(arrays, solution, unit, there, placed)
    return True


def settle_rest(arrays: InstanceArrays, solution: Solution, usable: Ints, placed: Ints) -> bool:
    """Put units of sources that nothing reads where most room is; whether there is any."""
    for unit in range(arrays.units.shape[0]):
        if not placed[unit]:
            best, most = -1, -1
            for here in range(usable.shape[0]):
                room = arrays.capacity[here] - solution.used[here]
                if admits(arrays, solution, unit, here, usable, placed) and room > most:
                    best, most = here, room
            if best < 0:
                return False
            settle(arrays, solution, unit, best, placed)
    return True
