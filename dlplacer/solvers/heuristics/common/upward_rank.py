"""Priorities of ops: the upward rank of HEFT (Topcuoglu, Hariri and Wu 2002, eq. 8 there)."""

from collections.abc import Sequence

from dlplacer.solvers.bounds.arc_delays import arc_delays
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time


def upward_ranks(instance: Instance, delay_weight: float = 1.0) -> list[float]:
    """[op] → mean duration + the largest of mean delay + rank over its readers, in ticks.

    Durations are averaged over the allowed devices, delays over the pairs of different devices that the two ops may use
    and that a route joins.

    Parameters
    ----------
    delay_weight
        Factor on the delays; 0 ranks by work alone.
    """
    key = f"upward ranks {delay_weight}"
    if key not in instance.known:
        instance.known[key] = _upward_ranks(instance, delay_weight)
    return instance.known[key]  # type: ignore[no-any-return]


def _upward_ranks(instance: Instance, delay_weight: float) -> list[float]:
    ranks = [0.0] * instance.op_count
    for op in reversed(instance.order):
        ask_time()
        below = 0.0
        for target, delay in instance.successors[op]:
            reach = ranks[target]
            if delay_weight:
                reach += delay_weight * arc_delays(instance, op, target, delay).mean
            below = max(below, reach)
        ranks[op] = below + instance.mean_duration[op]
    return ranks


def by_rank(instance: Instance, ranks: Sequence[float]) -> list[int]:
    """[op] → its place when ops are sorted by falling rank, ties in topological order; 0 comes first."""
    place = [0] * instance.op_count
    for position, op in enumerate(sorted(instance.order, key=lambda op: -ranks[op])):
        place[op] = position
    return place
