"""Lower bounds in ticks that need no solver: paths, delays and areas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dlplacer.solvers.bounds.area import Prices, backwards, best_prices, interval_areas, raised_heads
from dlplacer.solvers.bounds.heads_tails import heads, tails
from dlplacer.solvers.bounds.one_machine import block_bound, packing_bound
from dlplacer.solvers.instance.instance import Instance


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
