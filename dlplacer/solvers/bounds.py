"""Lower bounds in ticks that need no solver: paths, delays and areas."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlplacer.solvers.instance.instance import FAR, Delay, Instance
from dlplacer.solvers.instance.time_limit import ask_time


class ArcDelays(NamedTuple):
    """Delays of an arc over the device pairs that its two ends may use.

    `least` is the least delay, 0 if the ends may share a device. `cut` is the least delay between different devices,
    `FAR` if no route joins any two. `mean` is over the pairs of different devices that a route joins.
    """

    least: int
    cut: int
    mean: float


def arc_delays(instance: Instance, source: int, target: int, delay: Delay) -> ArcDelays:
    """The delays of an arc, computed once per instance."""
    if instance.block[source] == instance.block[target]:
        return ArcDelays(0, FAR, 0.0)
    key = id(delay), instance.allowed[source], instance.allowed[target]
    if key not in instance.known:
        sources, targets = key[1:]
        apart = [delay[a][b] for a in sources for b in targets if a != b]
        joined = [ticks for ticks in apart if ticks < FAR]
        cut = min(apart, default=FAR)
        least = 0 if not (sources and targets) or set(sources) & set(targets) else cut
        mean = sum(joined) / len(joined) if joined else 0.0
        instance.known[key] = ArcDelays(least, cut, mean)
    found: ArcDelays = instance.known[key]
    return found


def heads(instance: Instance, known: Sequence[int] = ()) -> list[int]:
    """[op] → a tick before which the op cannot start, by the paths to it and the work of its predecessors.

    Proof: by eq. 10 an op starts after each predecessor has ended and its tensor has arrived; shortest durations and
    least delays over the allowed devices never exceed the true ones. Let S be the predecessors on the op's own device.
    They run one after another (eq. 12), so the op waits for the best one-machine schedule of S with heads as release
    times, which runs S by rising head. It also waits for the arrival of every other predecessor, from a different
    device. If S omits a predecessor, omitting those that arrive no later cannot raise this time. So the least time
    over the sets S of the k latest arrivals, k = 0, 1, …, is a head. The computation starts from `known` heads.
    """
    if known:
        return _raised(instance, list(known))
    if "heads" not in instance.known:
        instance.known["heads"] = tuple(_raised(instance, [0] * instance.op_count))
    return list(instance.known["heads"])


def _raised(instance: Instance, head: list[int]) -> list[int]:
    for op in instance.order:
        ask_time()
        entries = []
        for source, delay in instance.predecessors[op]:
            end = head[source] + instance.shortest[source]
            arc = arc_delays(instance, source, op, delay)
            head[op] = max(head[op], end + arc.least)
            entries.append((end + arc.cut, head[source], instance.shortest[source]))
        # A single predecessor adds only its end, which already counts.
        if len(entries) > 1:
            head[op] = max(head[op], _least_over_sets(entries))
    return head


def tails(instance: Instance, known: Sequence[int] = ()) -> list[int]:
    """[op] → least ticks between the op's end and the end of the schedule: its head in reversed time."""
    return heads(instance.reversed, known)


def _least_over_sets(entries: list[tuple[int, int, int]]) -> int:
    """Least of max(one-machine end of the k latest, arrival of the next) over k, for (arrival, head, ticks) entries."""
    entries.sort(reverse=True)
    least = entries[0][0]
    for count in range(1, len(entries) + 1):
        end = 0
        for head, ticks in sorted((head, ticks) for _, head, ticks in entries[:count]):
            end = max(end, head) + ticks
        least = min(least, max(end, entries[count][0] if count < len(entries) else 0))
        if end >= least:
            break
    return least


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_NO_PRICE = 1e-9
"""Replaces a price of 0, whose product with the infinite duration on a forbidden device is undefined."""

_UNITS, _ROUNDS, _STEP = 2**10, 100, 4.0
"""For multiplicative weights (Arora, Hazan and Kale 2012): the highest price in whole units, so that rounding changes
prices by 0.1 %; the number of steps, as the error falls with its square root; the factor on the load in the exponent,
which is divided by the square root of the step's number. All prices give valid bounds."""


@dataclass(frozen=True)
class Prices:
    """[device] → price of a tick in whole units, and [op] → least cost of the op."""

    device: Ints
    cost: Ints

    def ticks(self, cost: Ints, delay: Ints | int = 0) -> Ints:
        """Least time in which the devices do work that costs `cost`, if all used devices but one lose `delay` ticks.

        Proof: a set U of used devices with total price N(U) and highest price m offers at most N(U)·T − (N(U) −
        m)·delay. For given m, the sufficient T is monotone in N(U). Hence T is least if U is the device of
        price m alone, or all devices that cost no more. Among single devices the one of highest price gives the least
        T.
        """
        prices = np.sort(self.device)
        least: Ints = -(-cost // prices[-1])
        for price in np.unique(prices[prices > 0]):
            total = prices[prices <= price].sum()
            least = np.minimum(least, -(-(cost + (total - price) * delay) // total))
        return least


def best_prices(instance: Instance) -> Prices:
    """The prices with the highest bound on all ops together, as found by multiplicative weights."""
    if "prices" in instance.known:
        return instance.known["prices"]  # type: ignore[no-any-return]
    identical = instance.uniform and all(len(devices) == instance.device_count for devices in instance.allowed)
    device = np.ones(instance.device_count, dtype=np.int64) if identical else _search_prices(instance)
    cost = [
        min(int(device[d]) * instance.duration[op][d] for d in devices) for op, devices in enumerate(instance.allowed)
    ]
    found = instance.known["prices"] = Prices(device, np.array(cost, dtype=np.int64))
    return found


def _search_prices(instance: Instance) -> Ints:
    duration = np.full((instance.op_count, instance.device_count), np.inf)
    for op, devices in enumerate(instance.allowed):
        duration[op, list(devices)] = [instance.duration[op][d] for d in devices]
    duration = duration[np.array(instance.longest) > 0]
    price = np.full(instance.device_count, 1.0 / instance.device_count)
    best, best_value = _whole(price), -1.0
    scale = max(1.0, float(sum(instance.longest)))
    for number in range(_ROUNDS):
        whole = _whole(price)
        spent = duration * np.maximum(whole, _NO_PRICE)
        value = float(spent.min(axis=1).sum()) / float(whole.sum())
        if value > best_value:
            best, best_value = whole, value
        cheapest = spent.argmin(axis=1)
        load = np.bincount(cheapest, duration[np.arange(len(duration)), cheapest], instance.device_count)
        price = price * np.exp(_STEP * load / scale / np.sqrt(number + 1.0))
        price /= price.sum()
    return best


def _whole(price: Floats) -> Ints:
    whole: Ints = np.rint(price / price.max() * _UNITS).astype(np.int64)
    return whole


_COLUMNS = 256
"""Pivots per matrix product: few need little memory, and a product skips the ops after its last pivot."""

_UNREACHED = -(2**40)
"""Stands for the ticks between pivots that no path joins: so far below 0 that no horizon makes up for it."""


@dataclass(frozen=True)
class Intervals:
    """Pivots in topological order; least ticks before, after and between pivots, `_UNREACHED` without a path."""

    pivots: Ints
    between: Ints
    before: Ints
    after: Ints


def interval_areas(instance: Instance, prices: Prices, most_pivots: int) -> Intervals:
    """Area bounds on the ops between any two pivots, and before and after each pivot.

    Proof: for u before v, the ops after u and before v all run between the end of u and the start of v, so
    `Prices.ticks` of their cost fits there. A device other than u's loses at least the least delay of a
    device-changing arc from u or an op after u: on a path from u to the device's first such op, some arc enters the
    device. The same holds backwards from v. So all used devices but one lose the sum of the two delays.
    """
    order = np.array(instance.order)
    # Zero-time ops have no energy, and captured graphs have many of them.
    working = order[np.array([instance.longest[op] > 0 for op in instance.order], dtype=bool)]
    chosen = np.unique(np.linspace(0, len(working) - 1, min(len(working), most_pivots)).round().astype(np.int64))
    pivots = working[chosen]
    after, before = reachable(instance, working), reachable(instance.reversed, working)
    cost = prices.cost[working].astype(np.float64)
    leave, enter = _cut_delays(instance)[pivots], _cut_delays(instance.reversed)[pivots]
    below = np.unpackbits(after[pivots], axis=1, count=len(working)).astype(bool)
    above = np.unpackbits(before[pivots], axis=1, count=len(working)).astype(bool)
    between = np.full((len(pivots), len(pivots)), _UNREACHED, dtype=np.int64)
    for first in range(0, len(pivots), _COLUMNS):
        ask_time()
        last = min(first + _COLUMNS, len(pivots))
        width = int(chosen[last - 1]) + 1
        area = (below[:last, :width] * cost[:width]) @ above[first:last, :width].T.astype(np.float64)
        lost = np.minimum(leave[:last, None] + enter[None, first:last], FAR)
        ticks = prices.ticks(area.astype(np.int64), lost)
        between[:last, first:last] = np.where(below[:last, chosen[first:last]], ticks, _UNREACHED)
    return Intervals(
        pivots,
        between,
        prices.ticks((above @ cost).astype(np.int64), enter),
        prices.ticks((below @ cost).astype(np.int64), leave),
    )


def raised_heads(instance: Instance, intervals: Intervals, head: list[int]) -> list[int]:
    """The heads; that of each pivot is raised by the work before the pivot and by the work since earlier pivots."""
    pivots = intervals.pivots
    known = np.array(head, dtype=np.int64)
    start = np.maximum(known[pivots], intervals.before)
    end = start + np.array(instance.shortest, dtype=np.int64)[pivots]
    for position in range(1, len(pivots)):
        late = int((end[:position] + intervals.between[:position, position]).max())
        if late > start[position]:
            end[position] += late - start[position]
            start[position] = late
    known[pivots] = start
    return [int(ticks) for ticks in known]


def backwards(intervals: Intervals) -> Intervals:
    """The intervals of the reversed instance."""
    return Intervals(
        intervals.pivots[::-1], intervals.between[::-1, ::-1].T, intervals.after[::-1], intervals.before[::-1]
    )


def reachable(instance: Instance, working: NDArray[np.int64]) -> NDArray[np.uint8]:
    """[op] → a bit for each op in `working`, set if that op comes after it."""
    bit = np.full(instance.op_count, -1)
    bit[working] = np.arange(len(working))
    reach = np.zeros((instance.op_count, (len(working) + 7) // 8), dtype=np.uint8)
    for op in reversed(instance.order):
        ask_time()
        row = reach[op]
        for target, _ in instance.successors[op]:
            row |= reach[target]
            if bit[target] >= 0:
                row[bit[target] // 8] |= 128 >> (bit[target] % 8)
    return reach


def _cut_delays(instance: Instance) -> Ints:
    """[op] → the least delay of a device-changing arc from the op or an op after it."""
    least = [FAR] * instance.op_count
    for op in reversed(instance.order):
        for target, delay in instance.successors[op]:
            least[op] = min(least[op], least[target], arc_delays(instance, op, target, delay).cut)
    return np.array(least, dtype=np.int64)


_MOST_UNITS = 2**21
"""Capacity, in units of the sizes' greatest common divisor, up to which all sums are listed with one bit each."""


def reachable_capacity(sizes: Iterable[int], capacity: Sequence[int | None]) -> list[int | None]:
    """[device] → its capacity, lowered to the largest sum of sizes that fits: to 18 of 20 bytes for sizes of 3 bytes.

    If there are too many sums to list, the capacity is lowered to a multiple of the sizes' greatest common divisor.
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


_MULTIPLICATIONS_PER_S, _MOST_PIVOTS = 2e9, 3000
"""Multiply-adds per second of the matrix product on a slow core; most pivots, whose three square matrices take 216
MB."""

_MOST_PAIRS, _MOST_THRESHOLDS = 2**31, 500
"""Ops × working ops up to which intervals are computed, since precedence takes two bits per pair; number of tails that
`_window_area` tries, each with a pass over all ops."""


@dataclass(frozen=True)
class Bounds:
    """A makespan that no schedule can beat, and [op] → least ticks before its start, and after its end."""

    makespan: int
    head: tuple[int, ...]
    tail: tuple[int, ...]


def critical_path(instance: Instance) -> int:
    """The largest sum of an op's head and its shortest duration.

    Proof: an op starts no earlier than its head (`heads`) and runs no faster than in its shortest duration.
    """
    return max(start + ticks for start, ticks in zip(heads(instance), instance.shortest, strict=True))


def whole_area(instance: Instance) -> int:
    """Least ticks in which the devices can do all the work.

    Proof: all ops run within the makespan, one at a time on each device (eq. 12); see `Prices`.
    """
    prices = best_prices(instance)
    return int(prices.ticks(prices.cost.sum(keepdims=True))[0])


def lower_bounds(
    instance: Instance, seconds: float = 5.0, head: Sequence[int] = (), tail: Sequence[int] = ()
) -> Bounds:
    """The best of all bounds of this module, computed in about `seconds` from known heads and tails.

    Proof: heads and tails are valid by `heads` and `interval_areas`; an op starts no earlier than its head, runs, and
    is followed by its tail.
    """
    prices = best_prices(instance)
    head, tail = heads(instance, head), tails(instance, tail)
    working = sum(ticks > 0 for ticks in instance.longest)
    affordable = int((3 * max(0.0, seconds) * _MULTIPLICATIONS_PER_S / max(1, working)) ** 0.5)
    if working and affordable > 1 and instance.op_count * working <= _MOST_PAIRS:
        intervals = interval_areas(instance, prices, min(affordable, _MOST_PIVOTS))
        head = heads(instance, raised_heads(instance, intervals, head))
        tail = tails(instance, raised_heads(instance.reversed, backwards(intervals), tail))
    makespan = max(bound(instance, prices, head, tail) for bound in BOUNDS.values())
    return Bounds(makespan, tuple(head), tuple(tail))


def _longest(instance: Instance, prices: Prices, head: list[int], tail: list[int]) -> int:
    return max(h + ticks + t for h, ticks, t in zip(head, instance.shortest, tail, strict=True))


def _window_area(instance: Instance, prices: Prices, head: list[int], tail: list[int]) -> int:
    """The largest h + area + t over ticks h and t, where the area is that of the ops with head ≥ h and tail ≥ t.

    Proof: these ops all run after tick h, and at least t ticks remain when the last of them has ended.
    """
    starts, ends = np.array(head, dtype=np.int64), np.array(tail, dtype=np.int64)
    late = np.argsort(-starts, kind="stable")
    starts, ends, cost = starts[late], ends[late], prices.cost[late]
    best = 0
    thresholds = np.unique(ends)
    for threshold in thresholds[:: max(1, len(thresholds) // _MOST_THRESHOLDS)]:
        ticks = prices.ticks(np.cumsum(np.where(ends >= threshold, cost, 0)))
        best = max(best, int((np.where(ends >= threshold, starts, -threshold) + ticks).max()) + int(threshold))
    return best


BOUNDS: dict[str, Callable[[Instance, Prices, list[int], list[int]], int]] = {
    "path": _longest,
    "window area": _window_area,
}
"""Name → bound on the makespan in ticks, from an instance, its devices' prices, and heads and tails."""
