"""Delays of arcs over the devices that their ends may use: the least, the least between different ones, the mean."""

from collections.abc import Sequence
from typing import NamedTuple

from dlplacer.solvers.instance.instance import FAR, Delay, Instance


class ArcDelays(NamedTuple):
    """Of the delays of an arc over the pairs of devices that its ends may use.

    `least` is 0 if the ends may share a device; `cut` is the least between different devices, `FAR` if they cannot be
    on any; `mean` is over the pairs of different devices that a route joins, 0 if there are none.
    """

    least: int
    cut: int
    mean: float


def arc_delays(instance: Instance, source: int, target: int, delay: Delay) -> ArcDelays:
    """The figures of an arc, each computed once for the instance."""
    if instance.block[source] == instance.block[target]:
        return ArcDelays(0, FAR, 0.0)
    key = id(delay), instance.allowed[source], instance.allowed[target]
    found = instance.delay_summaries.get(key)
    if found is None:
        free = len(key[1]) == len(key[2]) == instance.device_count > 1
        found = (_over_all(delay) if free else None) or _over_pairs(delay, key[1], key[2])
        instance.delay_summaries[key] = found
    return found


def _over_all(delay: Delay) -> ArcDelays | None:
    """Delays over all pairs of devices; None where no route joins some. The diagonal is 0."""
    count, values = len(delay), set().union(*delay)
    if max(values) >= FAR:
        return None
    some_nothing = sum(row.count(0) for row in delay) > count
    return ArcDelays(0, 0 if some_nothing else min(values - {0}), sum(map(sum, delay)) / (count * (count - 1)))


def _over_pairs(delay: Delay, sources: Sequence[int], targets: Sequence[int]) -> ArcDelays:
    apart = [delay[a][b] for a in sources for b in targets if a != b]
    joined = [ticks for ticks in apart if ticks < FAR]
    shared = 0 if set(sources) & set(targets) else FAR
    cut = min(apart, default=FAR)
    nothing = not sources or not targets
    return ArcDelays(0 if nothing else min(shared, cut), cut, sum(joined) / len(joined) if joined else 0.0)
