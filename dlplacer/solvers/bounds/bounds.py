"""Lower bounds in ticks that need no solver: paths, delays and areas, and blocks that share a device."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from math import gcd

import numpy as np

from dlplacer.solvers.bounds.area import Prices, backwards, best_prices, interval_areas, raised_heads
from dlplacer.solvers.bounds.heads_tails import heads, tails
from dlplacer.solvers.instance.instance import Instance

_MOST_UNITS = 2**21
"""Units of the greatest common divisor up to which all sums are listed, a bit for each: a shift takes 0.03 ms."""


def block_bound(instance: Instance, head: Sequence[int], tail: Sequence[int]) -> int:
    """Ticks in which no block that has several ops, on whichever device, can have ended.

    Proof: the ops of a block run one after another on its device (eq. 7 and 12), each after its head and with its tail
    to go. With interruptions allowed, the least time for that is found by taking, of the ops that are there, the one
    of longest tail (Jackson 1955; Carlier 1982).
    """
    bound = 0
    for ops in instance.members:
        if len(ops) > 1:
            heads, tails = [head[op] for op in ops], [tail[op] for op in ops]
            rows = {tuple(instance.duration[op][device] for op in ops) for device in instance.allowed[ops[0]]}
            ends = (preemptive_end(zip(heads, row, tails, strict=True)) for row in rows)
            bound = max(bound, min(ends, default=0))
    return bound


def packing_bound(instance: Instance, head: Sequence[int], tail: Sequence[int]) -> int:
    """Ticks in which blocks cannot be spread over the devices, however little else they wait for.

    Proof: of the k·m + 1 blocks of most work, m being the number of devices, some device gets k + 1, whose work is at
    least that of the k + 1 smallest of them (eq. 7 and 12). Before it starts the least head of all working ops has
    passed, and after it the least tail remains.
    """
    working = [op for op, ticks in enumerate(instance.shortest) if ticks]
    if not working:
        return 0
    idle = min(head[op] for op in working) + min(tail[op] for op in working)
    work = sorted((sum(instance.shortest[op] for op in ops) for ops in instance.members), reverse=True)
    sums, count = list(accumulate(work, initial=0)), instance.device_count
    most = (len(work) - 1) // count
    return idle + max((sums[k * count + 1] - sums[k * count - k] for k in range(1, most + 1)), default=-idle)


def preemptive_end(jobs: Iterable[tuple[int, int, int]]) -> int:
    """The least tick at which all (head, ticks, tail) jobs of one machine have ended and left their tails.

    Jobs may be interrupted, so this is no more than what jobs that may not be need.
    """
    coming = sorted(jobs)
    there: list[tuple[int, int]] = []
    now, end, position = 0, 0, 0
    while there or position < len(coming):
        if not there:
            now = max(now, coming[position][0])
        while position < len(coming) and coming[position][0] <= now:
            heappush(there, (-coming[position][2], coming[position][1]))
            position += 1
        tail, left = heappop(there)
        until = coming[position][0] if position < len(coming) else now + left
        spent = min(left, until - now)
        now += spent
        if spent < left:
            heappush(there, (tail, left - spent))
        else:
            end = max(end, now - tail)
    return end


def reachable_capacity(sizes: Iterable[int], capacity: Sequence[int | None]) -> list[int | None]:
    """[device] → the most bytes that some of the sizes fill without exceeding its memory.

    Ten layers of 3 bytes fill 18 of 20 bytes. Where sizes have no large common divisor the sums are too many to list,
    and the capacity is rounded down to a multiple of the divisor.
    """
    taken = tuple(sorted(size for size in sizes if size > 0))
    return [None if room is None else min(room, _reachable(taken, room)) for room in capacity]


@lru_cache(maxsize=64)
def _reachable(sizes: tuple[int, ...], room: int) -> int:
    unit = gcd(*sizes)
    if not unit or sum(sizes) <= room:
        return room
    units = room // unit
    if units > _MOST_UNITS:
        return units * unit
    inside, sums = (1 << (units + 1)) - 1, 1
    for size in sizes:
        sums |= (sums << (size // unit)) & inside
    return (sums.bit_length() - 1) * unit


@dataclass(frozen=True)
class BoundParams:
    """The number of pivots that `interval_areas` gets.

    Attributes
    ----------
    multiplications_per_s
        Products and sums of the matrix product that a slow core manages, from which the time is foretold.
    most_pivots
        Three matrices of pivots × pivots in 8 bytes each then take 216 MB.
    most_pairs
        Ops × working ops up to which there are intervals: who comes before whom takes a bit for each, twice.
    most_thresholds
        Tails that `_window_area` tries; each costs a pass over all ops.
    """

    multiplications_per_s: float = 2e9
    most_pivots: int = 3000
    most_pairs: int = 2**31
    most_thresholds: int = 500


PARAMS = BoundParams()


@dataclass(frozen=True)
class Bounds:
    """Times that no schedule can beat.

    Attributes
    ----------
    makespan
        No schedule ends earlier.
    head, tail
        [op] → ticks before its start, and between its end and the end of the schedule, at least.
    """

    makespan: int
    head: tuple[int, ...]
    tail: tuple[int, ...]


def critical_path(instance: Instance) -> int:
    """The longest path by shortest durations and least delays.

    Proof: the ops of a path run one after another (eq. 10), in no less than their shortest durations.
    """
    if "critical path" not in instance.known:
        starts = zip(heads(instance), instance.shortest, strict=True)
        instance.known["critical path"] = max(start + ticks for start, ticks in starts)
    return int(instance.known["critical path"])


def whole_area(instance: Instance) -> int:
    """Ticks in which the devices can do all the work.

    Proof: all ops run within the makespan, one at a time on each device (eq. 12); see `dlplacer.solvers.bounds.area`.
    """
    prices = best_prices(instance)
    return int(prices.ticks(prices.cost.sum(keepdims=True))[0])


def lower_bounds(
    instance: Instance, seconds: float = 5.0, head: Sequence[int] = (), tail: Sequence[int] = ()
) -> Bounds:
    """The best of all bounds here, spending about the given time.

    Proof: heads and tails are valid by `heads` and `interval_areas`; an op starts after its head, runs, and leaves its
    tail, one after another. What blocks need is proven in `one_machine`.

    Parameters
    ----------
    head, tail
        What is known of them already.
    """
    prices = best_prices(instance)
    head, tail = heads(instance, head), tails(instance, tail)
    working = sum(ticks > 0 for ticks in instance.longest)
    affordable = int((3 * max(0.0, seconds) * PARAMS.multiplications_per_s / max(1, working)) ** 0.5)
    if working and affordable > 1 and instance.op_count * working <= PARAMS.most_pairs:
        intervals = interval_areas(instance, prices, min(affordable, PARAMS.most_pivots))
        head = heads(instance, raised_heads(instance, intervals, head))
        tail = tails(instance, raised_heads(instance.reversed, backwards(intervals), tail))
    makespan = max(bound(instance, prices, head, tail) for bound in BOUNDS.values())
    return Bounds(makespan, tuple(head), tuple(tail))


def _longest(instance: Instance, prices: Prices, head: list[int], tail: list[int]) -> int:
    return max(h + ticks + t for h, ticks, t in zip(head, instance.shortest, tail, strict=True))


def _window_area(instance: Instance, prices: Prices, head: list[int], tail: list[int]) -> int:
    """The largest h + area of the ops with head ≥ h and tail ≥ t + t.

    Proof: these ops all run after tick h, and t ticks are left when the last of them has ended.
    """
    starts, ends = np.array(head, dtype=np.int64), np.array(tail, dtype=np.int64)
    late = np.argsort(-starts, kind="stable")
    starts, ends, cost = starts[late], ends[late], prices.cost[late]
    best = 0
    thresholds = np.unique(ends)
    for threshold in thresholds[:: max(1, len(thresholds) // PARAMS.most_thresholds)]:
        ticks = prices.ticks(np.cumsum(np.where(ends >= threshold, cost, 0)))
        best = max(best, int((np.where(ends >= threshold, starts, -threshold) + ticks).max()) + int(threshold))
    return best


BOUNDS: dict[str, Callable[[Instance, Prices, list[int], list[int]], int]] = {
    "path": _longest,
    "window area": _window_area,
    "packing": lambda instance, prices, head, tail: packing_bound(instance, head, tail),
    "blocks": lambda instance, prices, head, tail: block_bound(instance, head, tail),
}
"""Name → bound on the makespan in ticks, from an instance, prices of its devices' time, and heads and tails."""
