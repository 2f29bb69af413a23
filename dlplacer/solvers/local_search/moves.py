"""Simulated annealing over devices and sequence: the moves, and when to take them (Kirkpatrick et al. 1983)."""

import numpy as np

from dlplacer.solvers.decode.arrays import (
    BYTES,
    FREES,
    IS_SOURCE,
    MEMBERS,
    OP_BYTES,
    READERS,
    READS,
    SOURCE,
    UNIT,
    WAITS,
    WRITES,
    InstanceArrays,
    Ints,
)
from dlplacer.solvers.decode.runs import (
    run_from,
    take_over,
)
from dlplacer.solvers.decode.solution import (
    CRITICAL,
    DEVICE,
    DEVICE_BEFORE,
    MAKESPAN,
    NEVER,
    OVERFLOW,
    PATH,
    PATH_BEFORE,
    PLACE,
    Solution,
)


def put(arrays: InstanceArrays, solution: Solution, unit: int, device: int) -> int:
    """Put a unit on a device; the first place of the sequence at which that changes something.

    What follows its ops is not known any more, so paths become 0 and nothing is given up because of them.
    """
    first, lists, ops = solution.sequence.shape[0], arrays.lists, solution.ops
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = lists[member]
        ops[op, DEVICE], ops[op, DEVICE_BEFORE] = device, ops[op, DEVICE]
        ops[op, PATH], ops[op, PATH_BEFORE] = 0, ops[op, PATH]
        if not arrays.ops[op, IS_SOURCE]:
            first = min(first, ops[op, PLACE])
            continue
        for number in range(arrays.ops[op, WRITES], arrays.ops[op, WRITES + 1]):
            request = lists[number]
            for reader in range(arrays.requests[request, READERS], arrays.requests[request, READERS + 1]):
                first = min(first, ops[lists[reader], PLACE])
    return int(first)


def put_back(arrays: InstanceArrays, solution: Solution, unit: int) -> None:
    """Undo `put`: the schedule that a search begins with may have a unit on several devices."""
    ops = solution.ops
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = arrays.lists[member]
        ops[op, DEVICE], ops[op, PATH] = ops[op, DEVICE_BEFORE], ops[op, PATH_BEFORE]


def account(arrays: InstanceArrays, solution: Solution, unit: int) -> None:
    """Count the bytes of a unit where `put` has put it."""
    ops, used = solution.ops, solution.used
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = arrays.lists[member]
        used[ops[op, DEVICE_BEFORE]] -= arrays.ops[op, OP_BYTES]
        used[ops[op, DEVICE]] += arrays.ops[op, OP_BYTES]


def bytes_on(arrays: InstanceArrays, solution: Solution, unit: int, device: int) -> int:
    """The bytes of a unit that are on a device."""
    size = 0
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = arrays.lists[member]
        if solution.ops[op, DEVICE] == device:
            size += arrays.ops[op, OP_BYTES]
    return size


def _shift(ops: Ints, sequence: Ints, place: int, target: int) -> None:
    """Move the op at one place of the sequence to another one; those between make room."""
    op = sequence[place]
    step = 1 if target > place else -1
    while place != target:
        sequence[place] = sequence[place + step]
        ops[sequence[place], PLACE] = place
        place += step
    sequence[place] = op
    ops[op, PLACE] = place


def _room(arrays: InstanceArrays, solution: Solution, op: int, reach: int) -> tuple[int, int]:
    """The first and last places that an op may take in the sequence, at most `reach` away."""
    row, lists, ops = arrays.ops[op], arrays.lists, solution.ops
    place = ops[op, PLACE]
    low, high = max(0, place - reach), min(solution.sequence.shape[0] - 1, place + reach)
    for number in range(row[WAITS], row[WAITS + 1]):
        low = max(low, ops[lists[number], PLACE] + 1)
    for number in range(row[READS], row[READS + 1]):
        low = max(low, ops[arrays.requests[lists[number], SOURCE], PLACE] + 1)
    for number in range(row[FREES], row[FREES + 1]):
        high = min(high, ops[lists[number], PLACE] - 1)
    for number in range(row[WRITES], row[WRITES + 1]):
        request = arrays.requests[lists[number]]
        for reader in range(request[READERS], request[READERS + 1]):
            high = min(high, ops[lists[reader], PLACE] - 1)
    return low, high


def _neighbour_device(arrays: InstanceArrays, solution: Solution, op: int) -> int:
    """The device of a random op that it reads from or that reads it, or its own."""
    row, lists, ops = arrays.ops[op], arrays.lists, solution.ops
    reads = row[READS + 1] - row[READS]
    writes = row[WRITES + 1] - row[WRITES]
    if reads + writes == 0:
        return int(ops[op, DEVICE])
    number = np.random.randint(reads + writes)
    if number < reads:
        return int(ops[arrays.requests[lists[row[READS] + number], SOURCE], DEVICE])
    request = arrays.requests[lists[row[WRITES] + number - reads]]
    if request[READERS + 1] == request[READERS]:
        return int(ops[op, DEVICE])
    return int(ops[lists[np.random.randint(request[READERS], request[READERS + 1])], DEVICE])


def _propose(arrays: InstanceArrays, solution: Solution) -> tuple[int, int, int, int]:
    """An op, its device and place after a move, and the unit that it swaps devices with (-1: none); op -1 if nothing.

    Swaps keep the load of devices, which alone is what a plan without idle time can bear; their partner is an op on the
    other device whose turn is about the same.
    """
    ops, sequence, counts, used = solution.ops, solution.sequence, solution.counts, solution.used
    count, devices, reach = sequence.shape[0], used.shape[0], 4 * used.shape[0]
    if counts[CRITICAL] and np.random.random() < 0.7:
        op = solution.critical[np.random.randint(counts[CRITICAL])]
    else:
        op = sequence[np.random.randint(count)]
    unit, here, place = arrays.ops[op, UNIT], ops[op, DEVICE], ops[op, PLACE]
    other, there, target = -1, here, place
    kind = np.random.random()
    if devices > 1 and kind < 0.7:
        there = _neighbour_device(arrays, solution, op)
        if there == here or np.random.random() < 0.3:
            there = np.random.randint(devices)
        if there == here or not arrays.allowed[unit, there]:
            return -1, 0, 0, -1
        more = arrays.units[unit, BYTES] - bytes_on(arrays, solution, unit, there)
        less = bytes_on(arrays, solution, unit, here)
        if kind < 0.35:
            beside = place + np.random.randint(-reach, reach + 1)
            if beside < 0 or beside >= count or ops[sequence[beside], DEVICE] != there:
                return -1, 0, 0, -1
            other = arrays.ops[sequence[beside], UNIT]
            if other == unit or not arrays.allowed[other, here]:
                return -1, 0, 0, -1
            more -= bytes_on(arrays, solution, other, there)
            less -= arrays.units[other, BYTES] - bytes_on(arrays, solution, other, here)
        if used[there] + more > arrays.capacity[there] or used[here] - less > arrays.capacity[here]:
            return -1, 0, 0, -1
    if kind >= 0.55 or kind < 0.1:
        low, high = _room(arrays, solution, op, reach)
        target = np.random.randint(low, high + 1)
    return int(op), int(there), int(target), int(other)


def _copy(solution: Solution, devices: Ints, sequence: Ints) -> None:
    for op in range(devices.shape[0]):
        devices[op] = solution.ops[op, DEVICE]
    for place in range(sequence.shape[0]):
        sequence[place] = solution.sequence[place]


def anneal(
    arrays: InstanceArrays,
    solution: Solution,
    best_devices: Ints,
    best_sequence: Ints,
    best_makespan: int,
    trials: int,
    temperature: float,
    seed: int,
) -> tuple[int, int, int]:
    """Try moves from a solution that has been run; the best makespan, and how many were run and taken.

    Parameters
    ----------
    best_devices, best_sequence
        Overwritten whenever something better than `best_makespan` is found.
    temperature
        In ticks: a move that makes the schedule so much longer is taken once in e times.
    """
    np.random.seed(seed)
    ops, sequence, counts = solution.ops, solution.sequence, solution.counts
    run, taken = 0, 0
    for _ in range(trials):
        most = counts[MAKESPAN] - int(temperature * np.log(1.0 - np.random.random()))
        op, there, target, other = _propose(arrays, solution)
        if op < 0 or (there == ops[op, DEVICE] and target == ops[op, PLACE]):
            continue
        unit, here, place = arrays.ops[op, UNIT], ops[op, DEVICE], ops[op, PLACE]
        first = min(place, target)
        if there != here:
            first = min(first, put(arrays, solution, unit, there))
            if other >= 0:
                first = min(first, put(arrays, solution, other, here))
        else:
            ops[op, PATH_BEFORE], ops[op, PATH] = ops[op, PATH], 0
        _shift(ops, sequence, place, target)
        run += 1
        makespan = run_from(arrays, solution, first, most)
        if makespan < NEVER:
            taken += 1
            take_over(arrays, solution, first, makespan)
            if there != here:
                account(arrays, solution, unit)
                if other >= 0:
                    account(arrays, solution, other)
            if makespan < best_makespan:
                best_makespan = makespan
                _copy(solution, best_devices, best_sequence)
            continue
        _shift(ops, sequence, target, place)
        if there != here:
            put_back(arrays, solution, unit)
            if other >= 0:
                put_back(arrays, solution, other)
        else:
            ops[op, PATH] = ops[op, PATH_BEFORE]
        if counts[OVERFLOW]:
            return best_makespan, -1, taken
    return best_makespan, run, taken
