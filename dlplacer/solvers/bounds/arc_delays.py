"""Delays of arcs over the devices that their ends may use: the least, the least between different ones, the mean."""

from collections.abc import Sequence
from typing import NamedTuple

from dlplacer.solvers.instance.instance import FAR, Delay, Instance


class Summary(NamedTuple):
    """Of the delays over all allowed pairs of devices.

    `least` is 0 if the ends may share a device; `cut` is the least between different devices, `FAR` if there are none;
    `mean` is over the pairs of different devices that a route joins, 0 if there are none.
    """

    least: int
    cut: int
    mean: float


class ArcDelays:
    """Summaries of an instance's arcs, each computed once for the instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._known = instance.delay_summaries
        self._everywhere = tuple(range(instance.device_count))

    def least(self, source: int, target: int, delay: Delay) -> int:
        """The least delay of an arc; 0 if its ends may share a device."""
        return self.summary(source, target, delay).least

    def cut(self, source: int, target: int, delay: Delay) -> int:
        """The least delay of an arc whose ends are on different devices; `FAR` if they cannot be."""
        together = self.instance.block[source] == self.instance.block[target]
        return FAR if together else self.summary(source, target, delay).cut

    def mean(self, source: int, target: int, delay: Delay) -> float:
        """The mean delay of an arc whose ends are on different devices; 0 if they cannot be."""
        together = self.instance.block[source] == self.instance.block[target]
        return 0.0 if together else self.summary(source, target, delay).mean

    def summary(self, source: int, target: int, delay: Delay) -> Summary:
        """All figures of an arc."""
        key = id(delay), self.instance.allowed[source], self.instance.allowed[target]
        found = self._known.get(key)
        if found is None:
            free = key[1] == key[2] == self._everywhere and len(self._everywhere) > 1
            found = _over_all(delay) if free else None
            self._known[key] = found = found or _over_pairs(delay, key[1], key[2])
        return found


def _over_all(delay: Delay) -> Summary | None:
    """Summary over all pairs of devices; None where no route joins some. The diagonal is 0."""
    count, values = len(delay), set().union(*delay)
    if max(values) >= FAR:
        return None
    some_nothing = sum(row.count(0) for row in delay) > count
    return Summary(0, 0 if some_nothing else min(values - {0}), sum(map(sum, delay)) / (count * (count - 1)))


def _over_pairs(delay: Delay, sources: Sequence[int], targets: Sequence[int]) -> Summary:
    apart = [delay[a][b] for a in sources for b in targets if a != b]
    joined = [ticks for ticks in apart if ticks < FAR]
    shared = 0 if set(sources) & set(targets) else FAR
    cut = min(apart, default=FAR)
    nothing = not sources or not targets
    return Summary(0 if nothing else min(shared, cut), cut, sum(joined) / len(joined) if joined else 0.0)
