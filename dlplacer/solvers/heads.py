"""Heads and tails: ticks that must pass before an op starts and after it ends, by paths and delays."""

from collections.abc import Sequence

from dlplacer.solvers.instance import FAR, Delay, Instance


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
    delays = ArcDelays(instance)
    head = list(known) or [0] * instance.op_count
    for op in instance.order:
        entries = []
        for source, delay in instance.predecessors[op]:
            end = head[source] + instance.shortest[source]
            head[op] = max(head[op], end + delays.least(source, op, delay))
            entries.append((end + delays.cut(source, op, delay), head[source], instance.shortest[source]))
        if entries:
            head[op] = max(head[op], _least_over_sets(entries))
    return head


def tails(instance: Instance, known: Sequence[int] = ()) -> list[int]:
    """[op] → ticks between its end and the end of the schedule, at least: its head when time runs backwards."""
    return heads(instance.reversed, known)


class ArcDelays:
    """Least delays of arcs over the devices that their ends may use."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], tuple[int, int]] = {}

    def least(self, source: int, target: int, delay: Delay) -> int:
        """The least delay of an arc; 0 if its ends may share a device."""
        return self._pair(source, target, delay)[0]

    def cut(self, source: int, target: int, delay: Delay) -> int:
        """The least delay of an arc whose ends are on different devices; `FAR` if they cannot be."""
        together = self.instance.block[source] == self.instance.block[target]
        return FAR if together else self._pair(source, target, delay)[1]

    def _pair(self, source: int, target: int, delay: Delay) -> tuple[int, int]:
        key = id(delay), self.instance.allowed[source], self.instance.allowed[target]
        if key not in self._known:
            pairs = [(a, b) for a in key[1] for b in key[2]]
            self._known[key] = (
                min((delay[a][b] for a, b in pairs), default=0),
                min((delay[a][b] for a, b in pairs if a != b), default=FAR),
            )
        return self._known[key]


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
