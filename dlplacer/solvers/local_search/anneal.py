"""Simulated annealing of whole schedules with link contention (Kirkpatrick et al. 1983), one chain per worker."""

from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np

from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.decode.kernel import (
    ASKED_AT,
    BEGIN,
    BYTES,
    CRITICAL,
    DEVICE,
    DEVICE_BEFORE,
    FIRST_HOLD,
    FREES,
    FROM,
    IS_SOURCE,
    LAST_LEG,
    LEG,
    LEG_PATH,
    LEGS,
    MAKESPAN,
    MEMBERS,
    NEVER,
    OVERFLOW,
    PATH,
    PATH_BEFORE,
    PLACE,
    PREVIOUS,
    READERS,
    READS,
    REQUEST,
    SEGMENT,
    SOURCE,
    START,
    UNIT,
    WAITS,
    WRITES,
    InstanceArrays,
    Ints,
    Solution,
    filled,
    first_after,
    line,
    run_all,
    tables_of,
)
from dlplacer.solvers.decode.machine_code import machine_code
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, sequence
from dlplacer.solvers.instance.time_limit import count_work, now


def put(arrays: InstanceArrays, solution: Solution, unit: int, device: int, count: int) -> None:
    """Put a unit on a device, as the move's number `count`; its ops' paths become 0 (unknown), which prunes no run."""
    ops = solution.ops
    solution.used[ops[arrays.lists[arrays.units[unit, MEMBERS]], DEVICE]] -= arrays.units[unit, BYTES]
    solution.used[device] += arrays.units[unit, BYTES]
    solution.moved[count] = unit
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = arrays.lists[member]
        ops[op, DEVICE], ops[op, DEVICE_BEFORE] = device, ops[op, DEVICE]
        ops[op, PATH], ops[op, PATH_BEFORE] = 0, ops[op, PATH]


def put_back(arrays: InstanceArrays, solution: Solution, count: int) -> None:
    """Undo `count` calls of `put`."""
    ops = solution.ops
    for number in range(count):
        unit = solution.moved[number]
        first = arrays.lists[arrays.units[unit, MEMBERS]]
        solution.used[ops[first, DEVICE]] -= arrays.units[unit, BYTES]
        solution.used[ops[first, DEVICE_BEFORE]] += arrays.units[unit, BYTES]
        for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
            op = arrays.lists[member]
            ops[op, DEVICE], ops[op, PATH] = ops[op, DEVICE_BEFORE], ops[op, PATH_BEFORE]


def _fits(arrays: InstanceArrays, solution: Solution, count: int) -> bool:
    for number in range(count):
        here = solution.ops[arrays.lists[arrays.units[solution.moved[number], MEMBERS]], DEVICE]
        if solution.used[here] > arrays.capacity[here]:
            return False
    return True


def _shift(ops: Ints, sequence: Ints, place: int, target: int) -> None:
    op = sequence[place]
    step = 1 if target > place else -1
    while place != target:
        sequence[place] = sequence[place + step]
        ops[sequence[place], PLACE] = place
        place += step
    sequence[place] = op
    ops[op, PLACE] = place


def _room(arrays: InstanceArrays, solution: Solution, op: int, reach: int) -> tuple[int, int]:
    """The first and last places in the sequence allowed for an op, at most `reach` away."""
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
    """The device of a random producer or reader of an op; its own if it has none."""
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


def _move(arrays: InstanceArrays, solution: Solution) -> tuple[int, int, int]:
    """Move units; return their number (0 if the move is void), an op of the first unit, and its new place.

    A unit moves alone, moves with a run of ops after or before it, or swaps with a unit that runs at about that time on
    the other device. A plan without idle time needs swaps, because they preserve the loads of devices.
    """
    ops, sequence, counts, devices = solution.ops, solution.sequence, solution.counts, solution.used.shape[0]
    length, reach, kind = sequence.shape[0], 4 * devices, np.random.random()
    op = sequence[np.random.randint(length)]
    if counts[CRITICAL] and np.random.random() < 0.7:
        op = solution.critical[np.random.randint(counts[CRITICAL])]
    unit, here, place = arrays.ops[op, UNIT], ops[op, DEVICE], ops[op, PLACE]
    there = here
    if devices > 1 and kind < 0.7:
        there = _neighbour_device(arrays, solution, op)
        if there == here or np.random.random() < 0.3:
            there = np.random.randint(devices)
        if there == here or not arrays.allowed[unit, there]:
            return 0, op, place
    put(arrays, solution, unit, there, 0)
    count = 1
    if there != here and kind < 0.35:
        beside = place + np.random.randint(-reach, reach + 1)
        if 0 <= beside < length and ops[sequence[beside], DEVICE] == there:
            other = arrays.ops[sequence[beside], UNIT]
            if other != unit and arrays.allowed[other, here]:
                put(arrays, solution, other, here, 1)
                count = 2
    elif there != here and kind < 0.45:
        step = 1 - 2 * np.random.randint(2)
        at = place + step
        while 0 <= at < length and count < solution.moved.shape[0] and np.random.random() < 0.8:
            other = arrays.ops[sequence[at], UNIT]
            if ops[sequence[at], DEVICE] == here and arrays.allowed[other, there]:
                put(arrays, solution, other, there, count)
                count += 1
            at += step
    if kind >= 0.55 or kind < 0.1:
        low, high = _room(arrays, solution, op, reach)
        place = np.random.randint(low, high + 1)
    return count, op, place


def find_paths(arrays: InstanceArrays, solution: Solution) -> None:
    """Compute paths to the end of the schedule, and critical ops, with readers and producers of critical transfers.

    Legs (route segments of transfers) are visited in reverse order of planning. A leg in a gap before a leg planned
    earlier misses that leg's path, so some paths are too short.
    """
    ops, legs, counts, after = solution.ops, solution.legs, solution.counts, solution.free
    segments, holds, lists = arrays.segments, arrays.holds, arrays.lists
    makespan, leg, critical = counts[MAKESPAN], counts[LEGS] - 1, 0
    for here in range(after.shape[0]):
        after[here] = 0
    for op in range(ops.shape[0]):
        ops[op, PATH] = 0
    for earlier in range(leg + 1):
        legs[earlier, LEG_PATH] = 0
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
            last = solution.arrivals[request, here, LAST_LEG]
            legs[last, LEG_PATH] = max(legs[last, LEG_PATH], path)
        while leg >= 0 and legs[leg, ASKED_AT] == at:
            request, segment, begin = legs[leg, REQUEST], legs[leg, SEGMENT], legs[leg, BEGIN]
            size, source = arrays.sizes[request], arrays.requests[request, SOURCE]
            path = legs[leg, LEG_PATH] + line(segments, segment, 0, size)
            for hold in range(int(segments[segment, FIRST_HOLD]), int(segments[segment, FIRST_HOLD + 1])):
                link, offset, until = int(holds[hold, 0]), line(holds, hold, 1, size), line(holds, hold, 3, size)
                use = first_after(solution.busy, link, solution.uses[link], FROM, begin + offset)
                if use < solution.uses[link]:
                    path = max(path, until - offset + legs[solution.busy[link, use, LEG], LEG_PATH])
            legs[leg, LEG_PATH] = path
            if begin + path >= makespan:
                solution.critical[critical] = op
                critical += 1
                if not arrays.ops[source, IS_SOURCE]:
                    solution.critical[critical] = source
                    critical += 1
            previous = legs[leg, PREVIOUS]
            if previous >= 0:
                legs[previous, LEG_PATH] = max(legs[previous, LEG_PATH], path)
            else:
                ops[source, PATH] = max(ops[source, PATH], path)
            leg -= 1
    counts[CRITICAL] = critical


def anneal(
    arrays: InstanceArrays,
    solution: Solution,
    best_devices: Ints,
    best_sequence: Ints,
    best_makespan: int,
    moves: int,
    temperature: float,
    seed: int,
) -> int:
    """Try moves from a solution that has been run; return the best makespan, and overwrite the best arrays.

    A move that lengthens the schedule by `temperature` ticks is accepted with probability 1/e.
    """
    np.random.seed(seed)
    ops, sequence, counts = solution.ops, solution.sequence, solution.counts
    for _ in range(moves):
        most = counts[MAKESPAN] - int(temperature * np.log(1.0 - np.random.random()))
        count, op, target = _move(arrays, solution)
        place = ops[op, PLACE]
        _shift(ops, sequence, place, target)
        makespan = run_all(arrays, solution, most) if count and _fits(arrays, solution, count) else NEVER
        if makespan == NEVER:
            _shift(ops, sequence, target, place)
            put_back(arrays, solution, count)
            if counts[OVERFLOW]:
                break
            continue
        counts[MAKESPAN] = makespan
        find_paths(arrays, solution)
        if makespan < best_makespan:
            best_makespan = makespan
            for each in range(best_devices.shape[0]):
                best_devices[each] = ops[each, DEVICE]
            for at in range(best_sequence.shape[0]):
                best_sequence[at] = sequence[at]
    return best_makespan


class Chain:
    """An annealed solution, started from a schedule, and the best so far, whose `makespan` is in the kernels' ticks."""

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        ops = sequence(instance, schedule.device, schedule.start)
        self._instance, self._arrays, self._width = instance, tables_of(instance), 64
        self._device = np.array(schedule.device, np.int64)
        self._sequence = np.array([op for op in ops if op not in instance.sources], np.int64)
        self._kept = self._device.copy(), self._sequence.copy()
        self.makespan = self._run()

    def keep(self, admitted: bool) -> None:
        """Record whether the best solution was a plan; if not, return to the last one that was."""
        if admitted:
            self._kept = self._device.copy(), self._sequence.copy()
        else:
            self._device, self._sequence = (values.copy() for values in self._kept)
            self.makespan = self._run()

    def go_on(self, moves: int, temperature: float, seed: int) -> bool:
        """Try `moves` moves; True if they improved the best solution."""
        before = self.makespan
        self.makespan = machine_code(anneal)(
            self._arrays, self._solution, self._device, self._sequence, before, moves, temperature, seed
        )
        if self._solution.counts[OVERFLOW]:
            self._width = 2 * self._solution.busy.shape[1]
            self._run()
        return self.makespan < before

    def schedule(self) -> Schedule:
        """The best solution as a schedule in exact ticks, since kernels take ticks as linear in the bytes."""
        return in_sequence(self._instance, self._device.tolist(), [*self._instance.sources, *self._sequence.tolist()])

    def _run(self) -> int:
        """Run the best solution as the current one; return its makespan."""

        def run(solution: Solution) -> int:
            return int(machine_code(run_all)(self._arrays, solution, NEVER))

        self._solution, makespan = filled(self._instance, self._device, self._sequence, run, self._width)
        self._solution.counts[MAKESPAN] = makespan
        machine_code(find_paths)(self._arrays, self._solution)
        return makespan


_WARM, _COOL = (0.5, 1.5, 0.15), 0.002
"""Initial temperatures, one per seed in turn, and the final one, in mean times of working ops. The highest serves
problems whose transfers take far longer than ops."""

_CHUNK_S, _LEAST_S, _CHUNK_SHARE, _MOST_GROWTH = 0.25, 0.02, 0.125, 8
"""Moves are tried in chunks: most seconds of a chunk, and seconds near the end; a chunk's largest share of the time
left; its largest growth in moves, because a move may end at once or run the whole sequence."""

_RUN_S = 1.2e-5
"""Seconds of work per move of the compiled code."""


def anneal_schedule(instance: Instance, incumbent: Incumbent, seconds: float) -> None:
    """Offer better schedules until the gap closes or time is up, cooling once; a surrogate needs the same traffic."""
    best, budget = incumbent.best, incumbent.budget
    if best is None or incumbent.closed:
        return
    random = Random(budget.seed)
    stop_at = now() + min(seconds, budget.left_s)
    chains = [Chain(instance, best) for _ in range(budget.workers)]
    # Load or compile the code before the cooling begins.
    chains[0].go_on(0, 0.0, 0)
    began, moves, warm = now(), 1, _WARM[budget.seed % len(_WARM)]
    op_ticks = sum(instance.mean_duration) / max(1, instance.working_count)
    # Threads suffice: compiled code releases the interpreter's lock.
    with ThreadPoolExecutor(budget.workers) as pool:
        while (left_s := min(stop_at - now(), budget.left_s)) > 0 and not incumbent.closed:
            temperature = op_ticks * warm * (_COOL / warm) ** (1 - left_s / (stop_at - began))
            asked = now()
            tasks = [pool.submit(chain.go_on, moves, temperature, random.randrange(2**31)) for chain in chains]
            better = [task.result() for task in tasks]
            count_work(_RUN_S * moves)
            pace = (now() - asked) / moves
            for chain, found in zip(chains, better, strict=True):
                if found and incumbent.best is not None and chain.makespan < incumbent.best.makespan:
                    chain.keep(incumbent.offer(chain.schedule()))
            foreseen = int(min(_CHUNK_S, max(_CHUNK_SHARE * left_s, _LEAST_S)) / pace)
            moves = max(1, min(_MOST_GROWTH * moves, foreseen))
