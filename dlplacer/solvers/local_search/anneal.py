"""Simulated annealing of whole schedules with link contention (Kirkpatrick et al. 1983), one chain per worker."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import numpy as np

from dlplacer.solvers.decode.arrays import (
    BYTES,
    FREES,
    IS_SOURCE,
    MEMBERS,
    READERS,
    READS,
    SOURCE,
    UNIT,
    WAITS,
    WRITES,
    InstanceArrays,
    Ints,
    Tables,
    tables_of,
)
from dlplacer.solvers.decode.machine_code import machine_code
from dlplacer.solvers.decode.trial import (
    CRITICAL,
    DEVICE,
    DEVICE_BEFORE,
    MAKESPAN,
    NEVER,
    OVERFLOW,
    PATH,
    PATH_BEFORE,
    PLACE,
    TRIAL_START,
    Solution,
    filled,
    run_from,
    take_over,
    transfers,
    width_of,
)
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, sequence, with_transfers
from dlplacer.solvers.instance.time_limit import count_work, now


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
    """Undo `put`."""
    ops = solution.ops
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = arrays.lists[member]
        ops[op, DEVICE], ops[op, PATH] = ops[op, DEVICE_BEFORE], ops[op, PATH_BEFORE]


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
        more = arrays.units[unit, BYTES]
        if kind < 0.35:
            beside = place + np.random.randint(-reach, reach + 1)
            if beside < 0 or beside >= count or ops[sequence[beside], DEVICE] != there:
                return -1, 0, 0, -1
            other = arrays.ops[sequence[beside], UNIT]
            if other == unit or not arrays.allowed[other, here]:
                return -1, 0, 0, -1
            more -= arrays.units[other, BYTES]
        if used[there] + more > arrays.capacity[there] or used[here] - more > arrays.capacity[here]:
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
                size = arrays.units[unit, BYTES] - (arrays.units[other, BYTES] if other >= 0 else 0)
                solution.used[here] -= size
                solution.used[there] += size
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


ANNEALING_CODE = (run_from, take_over, anneal)
"""Kernels of annealing."""


class Chain:
    """One annealed solution and the best one that it came by.

    Attributes
    ----------
    makespan
        Of the best solution, in ticks as kernels count.
    """

    def __init__(self, tables: Tables, schedule: Schedule) -> None:
        """Begin with a schedule, run anew."""
        ops = sequence(tables.instance, schedule.device, schedule.start)
        self._tables, self._width = tables, 0
        self._device = np.array(schedule.device, np.int64)
        self._sequence = np.array([op for op in ops if op not in tables.instance.sources], np.int64)
        self._kept = self._device.copy(), self._sequence.copy()
        self.makespan = self._run()

    def go_on_from(self, other: "Chain") -> None:
        """Take the best solution of another chain, or of this one, as the present one."""
        self._device, self._sequence = other._device.copy(), other._sequence.copy()
        self.makespan = self._run()

    def keep(self, admitted: bool) -> None:
        """Hear whether the best solution was a plan; if not, go back to the last one that was."""
        if admitted:
            self._kept = self._device.copy(), self._sequence.copy()
        else:
            self._device, self._sequence = (values.copy() for values in self._kept)
            self.makespan = self._run()

    def go_on(self, trials: int, temperature: float, seed: int) -> bool:
        """Try so many moves; whether something better was found."""
        before = self.makespan
        found, tried, _ = machine_code(anneal)(
            self._tables.arrays, self._solution, self._device, self._sequence, before, trials, temperature, seed
        )
        self.makespan = found
        if tried < 0:
            self._width = 2 * width_of(self._solution)
            self._run()
        return found < before

    def schedule(self) -> Schedule:
        """The best solution as a schedule in exact ticks: kernels take the ticks of a route from a line."""
        instance = self._tables.instance
        solution, _ = self._filled()
        assert instance.traffic is not None
        start, devices = solution.ops[:, TRIAL_START].tolist(), self._device.tolist()
        return with_transfers(instance, instance.traffic, devices, start, list(transfers(self._tables, solution)))

    def _run(self) -> int:
        """Run the best solution as the present one; its makespan."""
        self._solution, makespan = self._filled()
        machine_code(take_over)(self._tables.arrays, self._solution, 0, makespan)
        return makespan

    def _filled(self) -> tuple[Solution, int]:
        def run_all(solution: Solution) -> int:
            return machine_code(run_from)(self._tables.arrays, solution, 0, NEVER)

        return filled(self._tables, self._device, self._sequence, run_all, self._width)


@dataclass(frozen=True)
class LocalSearchParams:
    """The cooling of the search.

    Attributes
    ----------
    warm, cool
        First and last temperature of a cycle, in mean times of working ops.
    chunk_s, least_s
        Seconds between looks at the clock and at what was found, at most and at the end.
    chunk_share, most_growth
        A chunk at most, of the time that is left, and in moves of the last one: a trial may be given up at once, or run
        the whole sequence.
    cycles, patience
        Times that the search is warmed up again, from the best schedule of all chains, and how many in a row may bring
        nothing.
    """

    warm: float = 0.15
    cool: float = 0.005
    chunk_s: float = 0.25
    least_s: float = 0.02
    chunk_share: float = 0.125
    most_growth: int = 8
    cycles: int = 4
    patience: int = 2


PARAMS = LocalSearchParams()

_TRIAL_S = 6e-6
"""Seconds of work for a trial of the compiled code: 170,000 of them take a second."""


def anneal_schedule(instance: Instance, incumbent: Incumbent, seconds: float) -> None:
    """Offer better schedules until the gap is closed, the time is up or a cycle brings nothing.

    Nothing where links are not contended.

    Parameters
    ----------
    instance
        The incumbent's, or a surrogate of it with the same traffic.
    """
    best, budget, traffic = incumbent.best, incumbent.budget, instance.traffic
    if best is None or traffic is None or not traffic.routes.resource_count or incumbent.closed:
        return
    tables = tables_of(instance)
    random, seconds = Random(budget.seed), min(seconds, budget.left_s)
    stop_at = now() + seconds
    chains = [Chain(tables, best) for _ in range(budget.workers)]
    # Loading or compiling the code is no part of a cycle, else the first seems to bring nothing.
    chains[0].go_on(0, 0.0, 0)
    began = now()
    cycle_s = (stop_at - began) / PARAMS.cycles
    op_ticks = sum(instance.mean_duration) / max(1, instance.working_count)
    trials, cycle, known, fruitless = 1, 0, best.makespan, 0
    # Threads suffice: compiled code releases the interpreter's lock.
    with ThreadPoolExecutor(budget.workers) as pool:
        while incumbent.best is not None and cycle_s > 0 and budget.left_s and not incumbent.closed:
            passed, done = divmod((now() - began) / cycle_s, 1)
            if passed >= PARAMS.cycles:
                return
            if passed > cycle:
                fruitless = fruitless + 1 if known <= incumbent.best.makespan else 0
                if fruitless == PARAMS.patience:
                    return
                cycle, known = int(passed), incumbent.best.makespan
                _restart(chains)
            temperature = op_ticks * PARAMS.warm * (PARAMS.cool / PARAMS.warm) ** done
            chunk_began = now()
            tasks = [pool.submit(chain.go_on, trials, temperature, random.randrange(2**31)) for chain in chains]
            better = [task.result() for task in tasks]
            count_work(_TRIAL_S * trials)
            pace = (now() - chunk_began) / trials
            for chain, found in zip(chains, better, strict=True):
                if found and chain.makespan < incumbent.best.makespan:
                    chain.keep(incumbent.offer(chain.schedule()))
            left_s = min(stop_at - now(), budget.left_s)
            foreseen = int(min(PARAMS.chunk_s, max(PARAMS.chunk_share * left_s, PARAMS.least_s)) / pace)
            trials = max(1, min(PARAMS.most_growth * trials, foreseen))


def _restart(chains: Sequence[Chain]) -> None:
    """All chains go on from the best solution of any."""
    best = min(chains, key=lambda chain: chain.makespan)
    for chain in chains:
        chain.go_on_from(best)
