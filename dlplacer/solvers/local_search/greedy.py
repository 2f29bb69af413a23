"""Contention-aware list scheduling in machine code: 10,000 ops on 32 devices in a fraction of a second."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dlplacer.problem.route_table import TimedRoute
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time
from dlplacer.solvers.local_search.arrays import (
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
    build_arrays,
)
from dlplacer.solvers.local_search.chain import Chain
from dlplacer.solvers.local_search.machine_code import compiled, inner
from dlplacer.solvers.local_search.solution import (
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
from dlplacer.solvers.local_search.transfer_scheduling import (
    line,
    receive,
    segment_start,
)


@dataclass(frozen=True)
class GreedyParams:
    """What is tried.

    Attributes
    ----------
    reluctances
        By how much the end of an op on a device counts as later for each tick that its inputs are on their way: what is
        sent holds up what is sent later, which the end does not tell. Never tuned.
    """

    reluctances: tuple[float, ...] = (0.0, 0.25, 1.0)


PARAMS = GreedyParams()


def offer_greedy(instance: Instance, incumbent: Incumbent, subsets: Iterable[Sequence[int]], seconds: float) -> None:
    """Offer what `best_greedy_chain` finds; nothing where links are not contended."""
    stop_at, built = time.monotonic() + seconds, build_arrays(instance)
    best = None if built is None else best_greedy_chain(instance, *built, subsets, stop_at)
    if best is not None:
        incumbent.offer(best.schedule())


def best_greedy_chain(
    instance: Instance,
    arrays: InstanceArrays,
    routes: Sequence[TimedRoute],
    subsets: Iterable[Sequence[int]],
    stop_at: float,
) -> Chain | None:
    """The best of HEFT without insertion over ranks, reluctances and sets of devices, the first and while time allows.

    Parameters
    ----------
    subsets
        Devices that may be used, the most promising set first.
    stop_at
        On the monotonic clock, in seconds.
    """
    orders = [
        sorted(range(instance.op_count), key=by_rank(instance, upward_ranks(instance, weight)).__getitem__)
        for weight in DELAY_WEIGHTS
    ]
    best: Chain | None = None
    for number, (devices, order, reluctance) in enumerate(product(subsets, orders, PARAMS.reluctances)):
        ask_time()
        # The first takes less than the tables did that it reads: half a second for 100,000 ops.
        if number and time.monotonic() > stop_at:
            break
        chain = greedy_chain(instance, arrays, routes, order, devices, reluctance)
        if chain is not None and (best is None or chain.makespan < best.makespan):
            best = chain
    return best


def greedy_chain(
    instance: Instance,
    arrays: InstanceArrays,
    routes: Sequence[TimedRoute],
    order: Sequence[int],
    devices: Sequence[int],
    reluctance: float = 0.0,
) -> Chain | None:
    """A chain that begins with HEFT's choice without insertion; None if memory or allowed devices do not suffice.

    Parameters
    ----------
    order
        All ops, each after what it reads.
    devices
        Those that may be used.
    """
    usable = np.zeros(instance.device_count, np.int64)
    usable[list(devices)] = 1
    ops = np.array([op for op in order if op not in instance.sources], np.int64)
    chain = Chain(instance, arrays, routes, np.zeros(instance.op_count, np.int64), ops)

    def build(solution: Solution) -> int:
        return greedy(arrays, solution, usable, np.zeros(len(arrays.units), np.int64), reluctance)

    return chain if chain.begin(build) else None


@inner
def _expect(arrays: InstanceArrays, solution: Solution, op: int, here: int, placed: Ints) -> tuple[int, int]:
    """When all that an op reads would be on a device if it were sent now by the quickest routes, each alone.

    The second value is how long it would be on its way in all if nothing else were.
    """
    ops, counts, latest, sent = solution.ops, solution.counts, 0, 0
    for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
        request = arrays.lists[number]
        source = arrays.requests[request, SOURCE]
        there = ops[source, DEVICE]
        if there == here or not placed[arrays.ops[source, UNIT]]:
            latest = max(latest, ops[source, TRIAL_END])
        elif solution.arrivals[request, here, TRIAL_EPOCH] == counts[EPOCH]:
            latest = max(latest, solution.arrivals[request, here, TRIAL_ARRIVAL])
        else:
            size, time = arrays.sizes[request], ops[source, TRIAL_END]
            route = arrays.routes[arrays.requests[request, CLASS], there, here, 0]
            for segment in range(arrays.segments_at[route], arrays.segments_at[route + 1]):
                sent += line(arrays.segments, segment, 0, size)
                time = segment_start(
                    arrays.segments,
                    arrays.holds,
                    solution.busy,
                    solution.links,
                    segment,
                    size,
                    time,
                    0,
                    counts[EPOCH],
                ) + line(arrays.segments, segment, 0, size)
            latest = max(latest, time)
    return latest, sent


@inner
def _settle(arrays: InstanceArrays, solution: Solution, unit: int, device: int, placed: Ints) -> None:
    """Put a unit on a device, and take its memory."""
    placed[unit] = 1
    solution.used[device] += arrays.units[unit, BYTES]
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        solution.ops[arrays.lists[member], DEVICE] = device


@inner
def _settle_rest(arrays: InstanceArrays, solution: Solution, usable: Ints, placed: Ints) -> bool:
    """Put units of sources that nothing reads where there is room; whether there is."""
    for unit in range(arrays.units.shape[0]):
        for here in range(usable.shape[0]):
            fits = solution.used[here] + arrays.units[unit, BYTES] <= arrays.capacity[here]
            if not placed[unit] and usable[here] and arrays.allowed[unit, here] and fits:
                _settle(arrays, solution, unit, here, placed)
        if not placed[unit]:
            return False
    return True


@compiled
def greedy(arrays: InstanceArrays, solution: Solution, usable: Ints, placed: Ints, reluctance: float) -> int:
    """The makespan when every op of the sequence in turn goes to the device on which it ends first; `NEVER` if none is.

    Ends count as `GreedyParams` says. A device is as free as its last op leaves it. Ops that move together go where
    the first of them goes.
    """
    ops, sequence, free, counts, used = solution.ops, solution.sequence, solution.free, solution.counts, solution.used
    counts[EPOCH] += 1
    counts[TRIAL_LEGS] = 0
    for here in range(free.shape[0]):
        free[here], used[here] = 0, 0
    makespan = 0
    for at in range(sequence.shape[0]):
        op = sequence[at]
        unit, best, soonest = arrays.ops[op, UNIT], -1, NEVER
        if placed[unit]:
            best = ops[op, DEVICE]
        else:
            for here in range(free.shape[0]):
                room = used[here] + arrays.units[unit, BYTES] <= arrays.capacity[here]
                if usable[here] and arrays.allowed[unit, here] and room:
                    arrival, sent = _expect(arrays, solution, op, here, placed)
                    cost = max(free[here], arrival) + arrays.ticks[op, here] + int(reluctance * sent)
                    if cost < soonest:
                        best, soonest = here, cost
            if best < 0:
                return NEVER
            _settle(arrays, solution, unit, best, placed)
        for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
            source = arrays.requests[arrays.lists[number], SOURCE]
            other = arrays.ops[source, UNIT]
            if arrays.ops[source, IS_SOURCE] and not placed[other]:
                # A source that several ops read: it lies with the first of them.
                if not arrays.allowed[other, best] or used[best] + arrays.units[other, BYTES] > arrays.capacity[best]:
                    return NEVER
                _settle(arrays, solution, other, best, placed)
        begin = max(free[best], receive(arrays, solution, op, 0, 0, at))
        for number in range(arrays.ops[op, WAITS], arrays.ops[op, WAITS + 1]):
            begin = max(begin, ops[arrays.lists[number], TRIAL_END])
        end = begin + arrays.ticks[op, best]
        ops[op, TRIAL_START], ops[op, TRIAL_END], free[best] = begin, end, end
        makespan = max(makespan, end)
        if counts[OVERFLOW]:
            return NEVER
    return makespan if _settle_rest(arrays, solution, usable, placed) else NEVER
