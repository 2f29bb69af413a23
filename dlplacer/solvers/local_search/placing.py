"""Placing ops one by one in machine code: what is expected to arrive, and the memory that is taken."""

from dlplacer.solvers.local_search.arrays import (
    BYTES,
    IS_SOURCE,
    MEMBERS,
    READS,
    SOURCE,
    UNIT,
    WAITS,
    InstanceArrays,
    Ints,
)
from dlplacer.solvers.local_search.machine_code import inner
from dlplacer.solvers.local_search.solution import (
    DEVICE,
    EPOCH,
    TRIAL_ARRIVAL,
    TRIAL_END,
    TRIAL_EPOCH,
    Solution,
)
from dlplacer.solvers.local_search.transfer_scheduling import best_route, line


@inner
def expect(arrays: InstanceArrays, solution: Solution, op: int, here: int, placed: Ints) -> tuple[int, int]:
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
        if there == here or not placed[arrays.ops[source, UNIT]]:
            latest = max(latest, ops[source, TRIAL_END])
        elif solution.arrivals[request, here, TRIAL_EPOCH] == counts[EPOCH]:
            latest = max(latest, solution.arrivals[request, here, TRIAL_ARRIVAL])
        else:
            route, arrival = best_route(arrays, solution, request, there, here, ops[source, TRIAL_END], 0)
            for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
                sent += line(arrays.segments, segment, 0, arrays.sizes[request])
            latest = max(latest, arrival)
    return latest, sent


@inner
def admits(arrays: InstanceArrays, solution: Solution, unit: int, device: int, usable: Ints, placed: Ints) -> bool:
    """True if a unit may go to a device: it is there, or it is allowed there and fits."""
    if placed[unit]:
        return bool(solution.ops[arrays.lists[arrays.units[unit, MEMBERS]], DEVICE] == device)
    room = solution.used[device] + arrays.units[unit, BYTES] <= arrays.capacity[device]
    return bool(usable[device] and arrays.allowed[unit, device] and room)


@inner
def settle(arrays: InstanceArrays, solution: Solution, unit: int, device: int, placed: Ints) -> None:
    """Put a unit on a device, and take its memory."""
    placed[unit] = 1
    solution.used[device] += arrays.units[unit, BYTES]
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        solution.ops[arrays.lists[member], DEVICE] = device


@inner
def settle_sources(arrays: InstanceArrays, solution: Solution, op: int, device: int, placed: Ints) -> bool:
    """Put the sources that an op reads on its device, unless others read them before; whether they may be there."""
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        source = arrays.requests[arrays.lists[number], SOURCE]
        unit = arrays.ops[source, UNIT]
        if arrays.ops[source, IS_SOURCE] and not placed[unit]:
            room = solution.used[device] + arrays.units[unit, BYTES] <= arrays.capacity[device]
            if not arrays.allowed[unit, device] or not room:
                return False
            settle(arrays, solution, unit, device, placed)
    return True


@inner
def settle_rest(arrays: InstanceArrays, solution: Solution, usable: Ints, placed: Ints) -> bool:
    """Put units of sources that nothing reads where there is room; whether there is."""
    for unit in range(arrays.units.shape[0]):
        for here in range(usable.shape[0]):
            fits = solution.used[here] + arrays.units[unit, BYTES] <= arrays.capacity[here]
            if not placed[unit] and usable[here] and arrays.allowed[unit, here] and fits:
                settle(arrays, solution, unit, here, placed)
        if not placed[unit]:
            return False
    return True
