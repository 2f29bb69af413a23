"""Device rules: each op in turn goes where it ends first, or no device idles while an op could run on it.

The first rule is HEFT's, with insertion. The second is *work-conserving list scheduling*: a free device always takes
the ready op of highest priority. Inputs may arrive at different times on different devices, so each device has its own
queue.
"""

from typing import NamedTuple

import numpy as np

from dlplacer.solvers.decode.kernel import (
    ARRIVAL,
    ARRIVAL_RUN,
    BYTES,
    CLASS,
    DEVICE,
    END,
    FIRST,
    FREES,
    IS_SOURCE,
    MEMBERS,
    NEVER,
    OVERFLOW,
    READERS,
    READS,
    RUN,
    SECOND,
    SOURCE,
    START,
    UNIT,
    WAITS,
    WRITES,
    InstanceArrays,
    Ints,
    Solution,
    begin_run,
    best_route,
    book,
    first_gap,
    line,
    pop,
    push,
    receive,
)
from dlplacer.solvers.decode.machine_code import ask
from dlplacer.solvers.instance.instance import FAR


def idle_ticks(arrays: InstanceArrays, request: int, source: int, target: int) -> int:
    """Ticks of the quickest route between two devices without contention."""
    ticks = 0
    if source != target:
        route = arrays.routes[arrays.requests[request, CLASS], source, target, 0]
        for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
            ticks += line(arrays.segments, segment, 0, arrays.sizes[request])
    return ticks


def nearest(arrays: InstanceArrays, solution: Solution, request: int, here: int, placed: Ints) -> tuple[int, int]:
    """The device from which an unread source's output reaches `here` soonest, and the tick; -1 if none admits it."""
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
    """Tick at which all inputs of an op arrive on a device, each sent now by its quickest route as if it were alone."""
    ops, latest = solution.ops, 0
    for number in range(arrays.ops[op, WAITS], arrays.ops[op, WAITS + 1]):
        latest = max(latest, ops[arrays.lists[number], END])
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        request = arrays.lists[number]
        source = arrays.requests[request, SOURCE]
        there = ops[source, DEVICE]
        if not placed[arrays.ops[source, UNIT]]:
            latest = max(latest, nearest(arrays, solution, request, here, placed)[1])
        elif there == here:
            latest = max(latest, ops[source, END])
        elif solution.arrivals[request, here, ARRIVAL_RUN] == solution.counts[RUN]:
            latest = max(latest, solution.arrivals[request, here, ARRIVAL])
        else:
            _, arrival = best_route(arrays, solution, request, there, here, ops[source, END])
            latest = max(latest, arrival)
    return int(latest)


def admits(arrays: InstanceArrays, solution: Solution, unit: int, device: int, placed: Ints) -> bool:
    """True if a unit is on a device already, or is allowed there and fits."""
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
    """Place the sources first read by an op as near to it as possible; False if one fits nowhere."""
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
    """Place unread sources on the devices with most room; False if one fits nowhere."""
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


def insert_all(arrays: InstanceArrays, solution: Solution, placed: Ints, booked: Ints, rows: Ints) -> int:
    """The makespan if each op of the sequence goes to the device where it ends first; `NEVER` if one fits nowhere.

    Each op fills the earliest gap that holds it. Its whole unit goes to the device of the first op. At first `placed`
    is 0 for every unit; `booked` and `rows` are for devices what `Solution.busy` and `uses` are for link directions.
    """
    ops, sequence, counts, used = solution.ops, solution.sequence, solution.counts, solution.used
    begin_run(solution)
    for here in range(used.shape[0]):
        used[here], rows[here] = 0, 0
    makespan = 0
    for at in range(sequence.shape[0]):
        op = sequence[at]
        ask()
        unit, best, soonest, first = arrays.ops[op, UNIT], -1, NEVER, 0
        for here in range(used.shape[0]):
            if admits(arrays, solution, unit, here, placed):
                ready = expect(arrays, solution, op, here, placed)
                begin = first_gap(booked, here, rows[here], ready, arrays.ticks[op, here])
                end = begin + arrays.ticks[op, here]
                if end < soonest:
                    best, soonest, first = here, end, begin
        if best < 0:
            return NEVER
        if not placed[unit]:
            settle(arrays, solution, unit, best, placed)
        if not settle_sources(arrays, solution, op, best, placed):
            return NEVER
        ready = max(first, receive(arrays, solution, op, at))
        begin = first_gap(booked, best, rows[best], ready, arrays.ticks[op, best])
        end = begin + arrays.ticks[op, best]
        book(booked, rows, best, begin, end, 0)
        ops[op, START], ops[op, END] = begin, end
        makespan = max(makespan, end)
        if counts[OVERFLOW]:
            return NEVER
    return makespan if settle_rest(arrays, solution, placed) else NEVER


DONE, MISSING, KEY, BY_KEY, RELEASED = range(5)
"""Columns of `Desk.ops`: whether the op has run, the number of arcs from ops not yet run, and its key, the op's place
in the order of preference. Two more columns have other rows: key → op, and a list of ops to be queued."""


class Desk(NamedTuple):
    """The state of list scheduling besides the tables of its solution.

    Attributes
    ----------
    placed
        [unit] → 1 if its device is decided.
    arrival
        [op, device] → arrival of its inputs.
    heaps, rows
        A heap per device of future ops by arrival and key, then a heap per device of ready ops by key; heap lengths.
    """

    placed: Ints
    ops: Ints
    arrival: Ints
    heaps: Ints
    rows: Ints


def new_desk(arrays: InstanceArrays, order: Ints) -> Desk:
    """An empty desk; zero-time ops come first, then the others as in `order`."""
    (count, devices), takes_none = arrays.ticks.shape, arrays.ticks.max(axis=1) == 0
    ops = np.zeros((count, RELEASED + 1), np.int64)
    ops[:, BY_KEY] = order[np.argsort(~takes_none[order], kind="stable")]
    ops[ops[:, BY_KEY], KEY] = np.arange(count)
    return Desk(
        np.zeros(len(arrays.units), np.int64),
        ops,
        np.zeros((count, devices), np.int64),
        np.zeros((2 * devices, count, SECOND + 1), np.int64),
        np.zeros(2 * devices, np.int64),
    )


def _enter(desk: Desk, heap: int, first: int, second: int) -> None:
    push(desk.heaps, heap, desk.rows[heap], first, second)
    desk.rows[heap] += 1


def _leave(desk: Desk, heap: int) -> None:
    pop(desk.heaps, heap, desk.rows[heap])
    desk.rows[heap] -= 1


def _may_run(arrays: InstanceArrays, solution: Solution, desk: Desk, op: int, here: int) -> bool:
    is_open = not desk.ops[op, DONE]
    return is_open and admits(arrays, solution, arrays.ops[op, UNIT], here, desk.placed)


def _count_missing(arrays: InstanceArrays, desk: Desk) -> tuple[int, int]:
    """Count each op's arcs from non-sources; list ops without any; return the counts of non-sources and listed ops."""
    left, released = 0, 0
    for op in range(desk.ops.shape[0]):
        desk.ops[op, DONE] = arrays.ops[op, IS_SOURCE]
        for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
            source = arrays.requests[arrays.lists[number], SOURCE]
            desk.ops[op, MISSING] += 1 - arrays.ops[source, IS_SOURCE]
        for number in range(arrays.ops[op, WAITS], arrays.ops[op, WAITS + 1]):
            desk.ops[op, MISSING] += 1 - arrays.ops[arrays.lists[number], IS_SOURCE]
        if not desk.ops[op, DONE]:
            left += 1
            if not desk.ops[op, MISSING]:
                desk.ops[released, RELEASED] = op
                released += 1
    return left, released


def _release(arrays: InstanceArrays, solution: Solution, desk: Desk, op: int) -> None:
    """Queue an op, whose inputs are all scheduled, on every device that may run it."""
    for here in range(desk.arrival.shape[1]):
        if _may_run(arrays, solution, desk, op, here):
            desk.arrival[op, here] = expect(arrays, solution, op, here, desk.placed)
            _enter(desk, here, desk.arrival[op, here], desk.ops[op, KEY])


def _free(arrays: InstanceArrays, desk: Desk, first: int, limit: int, released: int) -> int:
    """Remove one arc into each op at places `first` to `limit`; list ops left without any; return the list's length."""
    for number in range(first, limit):
        reader = arrays.lists[number]
        desk.ops[reader, MISSING] -= 1
        if not desk.ops[reader, MISSING]:
            desk.ops[released, RELEASED] = reader
            released += 1
    return released


def _find_released(arrays: InstanceArrays, desk: Desk, op: int) -> int:
    """List the ops that waited only for this op; return their number."""
    released = 0
    for number in range(arrays.ops[op, WRITES], arrays.ops[op, WRITES + 1]):
        request = arrays.lists[number]
        first, limit = arrays.requests[request, READERS], arrays.requests[request, READERS + 1]
        released = _free(arrays, desk, first, limit, released)
    return _free(arrays, desk, arrays.ops[op, FREES], arrays.ops[op, FREES + 1], released)


def _next_decision(arrays: InstanceArrays, solution: Solution, desk: Desk) -> tuple[int, int]:
    """The device that takes an op next, and the tick; -1 if all queues are empty."""
    best, soonest, count = -1, NEVER, desk.arrival.shape[1]
    for here in range(count):
        ready = count + here
        _drop_void(arrays, solution, desk, ready, FIRST, here)
        now = solution.free[here]
        if not desk.rows[ready]:
            _drop_void(arrays, solution, desk, here, SECOND, here)
            if not desk.rows[here]:
                continue
            now = max(now, desk.heaps[here, 0, FIRST])
        if now < soonest:
            best, soonest = here, now
    return best, soonest


def _drop_void(arrays: InstanceArrays, solution: Solution, desk: Desk, heap: int, column: int, here: int) -> None:
    """Drop ops that are no longer allowed on a device from the top of a heap; `column` has the ops' keys."""
    while desk.rows[heap]:
        if _may_run(arrays, solution, desk, desk.ops[desk.heaps[heap, 0, column], BY_KEY], here):
            break
        _leave(desk, heap)


def _choose(arrays: InstanceArrays, solution: Solution, desk: Desk, here: int, now: int) -> int:
    """The op of highest priority that can start now; -1 if there is none."""
    ready = desk.arrival.shape[1] + here
    while desk.rows[here] and desk.heaps[here, 0, FIRST] <= now:
        _enter(desk, ready, desk.heaps[here, 0, SECOND], 0)
        _leave(desk, here)
    while desk.rows[ready]:
        key = desk.heaps[ready, 0, FIRST]
        op = desk.ops[key, BY_KEY]
        _leave(desk, ready)
        if not _may_run(arrays, solution, desk, op, here):
            continue
        late = expect(arrays, solution, op, here, desk.placed)
        if late <= now:
            return int(op)
        desk.arrival[op, here] = late
        _enter(desk, here, late, key)
    return -1


def work_on(arrays: InstanceArrays, solution: Solution, desk: Desk) -> int:
    """The makespan if no device idles while an op could run on it; `NEVER` if memory or allowed devices prevent it."""
    counts, used, free = solution.counts, solution.used, solution.free
    begin_run(solution)
    for here in range(used.shape[0]):
        used[here] = 0
    left, released = _count_missing(arrays, desk)
    makespan = 0
    while left and not counts[OVERFLOW]:
        ask()
        for number in range(released):
            _release(arrays, solution, desk, desk.ops[number, RELEASED])
        released = 0
        here, now = _next_decision(arrays, solution, desk)
        if here < 0:
            return NEVER
        op = _choose(arrays, solution, desk, here, now)
        if op < 0:
            continue
        if not desk.placed[arrays.ops[op, UNIT]]:
            settle(arrays, solution, arrays.ops[op, UNIT], here, desk.placed)
        if not settle_sources(arrays, solution, op, here, desk.placed):
            return NEVER
        begin = max(now, receive(arrays, solution, op, 0))
        end = begin + arrays.ticks[op, here]
        solution.ops[op, START], solution.ops[op, END], free[here] = begin, end, end
        desk.ops[op, DONE], makespan, left = 1, max(makespan, end), left - 1
        released = _find_released(arrays, desk, op)
    return makespan if settle_rest(arrays, solution, desk.placed) else NEVER
