"""Rings through the devices of a real machine: the widest one, and others at the same time on the rate it leaves."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlplacer.machines.costs.message_routes import LinkDirection, Wiring

EXHAUSTIVE_DEVICES = 8
"""Up to this many devices the search for the widest ring is complete."""

SEARCHED_DEVICES = 32
"""Up to this many it ends after `SEARCH_STEPS` hops; beyond it the order given is the ring."""

SEARCH_STEPS = 5_000
_WORTH_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Ring:
    """A directed ring.

    Attributes
    ----------
    order
        Devices; each sends to the next, the last to the first.
    bytes_per_s
        The bandwidth of every hop at once, with shared links considered.
    latency_s
        The largest latency of a hop.
    """

    order: tuple[str, ...]
    bytes_per_s: float
    latency_s: float


def widest_ring(
    wiring: Wiring, devices: Sequence[str], used: Mapping[LinkDirection, float] | None = None
) -> Ring | None:
    """The ring of the highest rate through these devices, on the rates others leave; None if no rate is left.

    Depth-first over the orders, widest hop first, cut off where a hop cannot beat the best ring so far; it starts from
    the order given. Two devices form a ring of two hops.

    Parameters
    ----------
    used
        LinkDirection → bytes per second that other rings take.
    """
    search = _Search(wiring, devices, used or {})
    search.run()
    if search.best is None:
        return None
    order = search.best
    hops = list(zip(order, (*order[1:], order[0]), strict=True))
    return Ring(order, search.best_rate, max(wiring.latency_s(a, b) for a, b in hops))


def rings(wiring: Wiring, devices: Sequence[str]) -> tuple[Ring, ...]:
    """Rings that run side by side, as NCCL's channels do: the widest, then the widest on the rates left, and so on.

    A ring slower than a quarter of the first is not worth splitting data for, and ends the list. The opposite direction
    of a ring over full-duplex links is a ring of its own.
    """
    found: list[Ring] = []
    used: dict[LinkDirection, float] = defaultdict(float)
    while (ring := widest_ring(wiring, devices, used)) is not None:
        if found and ring.bytes_per_s < _WORTH_SHARE * found[0].bytes_per_s:
            break
        found.append(ring)
        for a, b in zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True):
            for direction in wiring.directions(a, b):
                used[direction] += ring.bytes_per_s
    return tuple(found)


class _Search:
    """Depth-first search for the ring whose narrowest link is widest."""

    def __init__(self, wiring: Wiring, devices: Sequence[str], used: Mapping[LinkDirection, float]) -> None:
        self.wiring, self.devices, self.used = wiring, tuple(devices), used
        self.best: tuple[str, ...] | None = None
        self.best_rate = 0.0
        # Complete up to 8 devices, which have 5,040 rings; beyond it what the widest hops lead to has to do.
        self.left = SEARCH_STEPS if len(devices) > EXHAUSTIVE_DEVICES else 1 << 60
        self.loads: dict[LinkDirection, int] = defaultdict(int)

    def run(self) -> None:
        self._offer(self.devices)
        if len(self.devices) > SEARCHED_DEVICES:
            return
        ceiling = self._ceiling()
        stack = [(self.devices[:1], self._choices(self.devices[:1]))]
        while stack and self.left > 0 and self.best_rate < ceiling * (1 - 1e-12):
            path, choices = stack[-1]
            if not choices:
                stack.pop()
                if len(path) > 1:
                    self._load(path[-2], path[-1], -1)
                continue
            self.left -= 1
            following = choices.pop()
            self._load(path[-1], following, 1)
            longer = (*path, following)
            # A ring is as wide as its narrowest hop, and loads only grow: no order through this hop can be better.
            if self._narrowest(path[-1], following) <= self.best_rate:
                self._load(path[-1], following, -1)
            elif len(longer) == len(self.devices):
                self._offer(longer)
                self._load(path[-1], following, -1)
            else:
                stack.append((longer, self._choices(longer)))

    def _choices(self, path: tuple[str, ...]) -> list[str]:
        """Devices to go on to, the best last."""
        others = [device for device in reversed(self.devices) if device not in path]
        return sorted(others, key=lambda other: self._alone(path[-1], other))

    def _load(self, a: str, b: str, count: int) -> None:
        for direction in self.wiring.directions(a, b):
            self.loads[direction] += count

    def _narrowest(self, a: str, b: str) -> float:
        directions = self.wiring.directions(a, b)
        return min(self._free(direction) / self.loads[direction] for direction in directions)

    def _alone(self, a: str, b: str) -> float:
        return min(map(self._free, self.wiring.directions(a, b)))

    def _free(self, direction: LinkDirection) -> float:
        return max(0.0, self.wiring.rate(direction) - self.used.get(direction, 0.0))

    def _ceiling(self) -> float:
        """No ring is wider: every device must be entered and left by some hop."""
        leave = [max(self._alone(a, b) for b in self.devices if b != a) for a in self.devices]
        enter = [max(self._alone(a, b) for a in self.devices if b != a) for b in self.devices]
        return min(*leave, *enter)

    def _offer(self, order: tuple[str, ...]) -> None:
        loads: dict[LinkDirection, int] = defaultdict(int)
        for a, b in zip(order, (*order[1:], order[0]), strict=True):
            for direction in self.wiring.directions(a, b):
                loads[direction] += 1
        rate = min(self._free(direction) / load for direction, load in loads.items())
        if rate > self.best_rate:
            self.best, self.best_rate = order, rate
