"""Heads and tails: ticks that must pass before an op starts and after it ends, by paths and delays."""

from collections.abc import Sequence
from typing import NamedTuple

from dlplacer.solvers.instance.instance import FAR, Delay, Instance
from dlplacer.solvers.instance.time_limit import ask_time


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


def heads(instance: Instance, known: Sequence[int] = ()) -> list[int]:
    """[op] → a tick before which it cannot start, by its paths and by the work of its predecessors.

    Proof: by eq. 10 an op starts after each predecessor has ended and its tensor has travelled, and shortest durations
    and least delays over the allowed devices are no longer than the true ones. Moreover, let S be the predecessors on
    the op's own device. They run one after another there (eq. 12), so the op waits for the best one-machine schedule of
    S with their heads as release times, which takes them by rising head; and it waits for the arrival of every other
    one from a different device. If S leaves out a predecessor, leaving out all that arrive no later cannot raise this;
    so the least value over the sets S of the k latest arrivals, k = 0, 1, …, is valid.

    Parameters
    ----------
    known
        [op] → heads that are already known, to start from.
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
        # One predecessor gives no more than its end, which counts already.
        if len(entries) > 1:
            head[op] = max(head[op], _least_over_sets(entries))
    return head


def tails(instance: Instance, known: Sequence[int] = ()) -> list[int]:
    """[op] → ticks between its end and the end of the schedule, at least: its head when time runs backwards."""
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
