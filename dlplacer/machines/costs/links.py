"""Messages and collectives over the links of a real machine: routes, shared links, rings, and their costs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.collectives import (
    ALGORITHMS,
    FREE,
    GLOO,
    NCCL,
    AlphaBeta,
    CollectiveAlgorithm,
    Round,
    hierarchical_rounds,
    ring_pass_rounds,
)
from dlplacer.machines.costs.device_table import is_core
from dlplacer.machines.costs.gradient_codecs import CollectiveCosts

Message = tuple[str, str, float]
"""Sending device, receiving device, share of the full vector that the message carries."""

LinkDirection = tuple[str, str]
"""A link in one direction; a half-duplex link is one link direction, its ends in name order."""


class Wiring:
    """The routes between the devices of a topology.

    A message takes the route of the highest rate through routers, and among equals the one of least latency. Devices
    relay only if no routers join two devices. Both directions take the same route.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._routes_from: dict[str, dict[str, tuple[str, ...]]] = {}
        self._directions: dict[tuple[str, str], tuple[LinkDirection, ...]] = {}
        self._channels: dict[tuple[str, str], AlphaBeta] = {}

    def route(self, source: str, target: str) -> tuple[str, ...]:
        """The nodes that a message visits, both ends included.

        Raises InfeasibleError if no links join the devices.
        """
        for name in (source, target):
            if name not in self.topology.device_index:
                raise InputError(f"{name!r} is not a device of topology {self.topology.name!r}; use one that it lists")
        # One search serves both directions, and a pull uses the routes of a push in reverse.
        if self.topology.device_index[target] < self.topology.device_index[source]:
            return self.route(target, source)[::-1]
        if source not in self._routes_from:
            self._routes_from[source] = self._search(source, relay=False)
            if len(self._routes_from[source]) + 1 < len(self.topology.devices):
                self._routes_from[source] = {**self._search(source, relay=True), **self._routes_from[source]}
        if target not in self._routes_from[source]:
            raise InfeasibleError(
                f"devices {source!r} and {target!r} of topology {self.topology.name!r} are not joined by any links; "
                "use devices of one connected part"
            )
        return self._routes_from[source][target]

    def channel(self, source: str, target: str) -> AlphaBeta:
        """The cost of one message that has the links to itself; 0 from a device to itself."""
        if source == target:
            return FREE
        if (source, target) not in self._channels:
            links = [self.topology.link_between[hop] for hop in pairwise(self.route(source, target))]
            slowest = min(link.total_bytes_per_s for link in links)
            self._channels[source, target] = AlphaBeta(sum(link.latency_s for link in links), 1 / slowest)
        return self._channels[source, target]

    def directions(self, source: str, target: str) -> tuple[LinkDirection, ...]:
        """The link directions that a message occupies."""
        if (source, target) not in self._directions:
            hops = pairwise(self.route(source, target))
            self._directions[source, target] = tuple(self.topology.link_between[hop].direction(hop) for hop in hops)
        return self._directions[source, target]

    def round(self, messages: Iterable[Message]) -> AlphaBeta:
        """The cost of messages that all start at once.

        Messages share a link direction by taking turns or splitting its rate, so β is the largest ratio of bytes to
        rate of a link direction; α is the largest latency of a message. Messages from a device to itself are free.
        """
        loads: dict[LinkDirection, float] = defaultdict(float)
        latency_s = 0.0
        for source, target, share in messages:
            if source != target:
                for direction in self.directions(source, target):
                    loads[direction] += share
                latency_s = max(latency_s, self.channel(source, target).latency_s)
        return AlphaBeta(
            latency_s, max((load / self.rate(direction) for direction, load in loads.items()), default=0.0)
        )

    def rate(self, direction: LinkDirection) -> float:
        """Bytes per second that a link direction carries."""
        return self.topology.link_between[direction].total_bytes_per_s

    def _search(self, source: str, relay: bool) -> dict[str, tuple[str, ...]]:
        """Target device → its route, with the highest rate, then the least latency."""
        import networkx as nx

        devices, routes = self.topology.device_index, dict[str, tuple[str, ...]]()
        hops = {
            hop: link
            for hop, link in self.topology.link_between.items()
            if relay or hop[0] == source or hop[0] not in devices
        }
        for rate in sorted({link.total_bytes_per_s for link in hops.values()}, reverse=True):
            graph = nx.DiGraph()
            graph.add_node(source)
            wide = ((*hop, link.latency_s) for hop, link in hops.items() if link.total_bytes_per_s >= rate)
            graph.add_weighted_edges_from(wide)
            for name, route in nx.single_source_dijkstra_path(graph, source).items():
                routes.setdefault(name, tuple(route))
        return {name: route for name, route in routes.items() if name in devices and name != source}


EXHAUSTIVE_DEVICES = 8
"""Up to this many devices the search for the widest ring is complete."""

SEARCHED_DEVICES = 32
"""Up to this many devices the search ends after `SEARCH_STEPS` hops; beyond that the given order is the ring."""

SEARCH_STEPS = 5_000
_WORTH_SHARE = 0.25


Ring = tuple[tuple[str, ...], float]
"""The devices in the order of a ring, and the bytes per second of each hop while all hops send."""


def hops(order: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The (sender, receiver) pairs of a ring."""
    return zip(order, (*order[1:], order[0]), strict=True)


def rings(wiring: Wiring, devices: Sequence[str]) -> tuple[Ring, ...]:
    """Rings that run in parallel, like NCCL's channels: the widest, then the widest on the remaining rates, and so on.

    The list ends before a ring slower than a quarter of the first, which is not worth splitting data for. On
    full-duplex links the opposite direction of a ring is another ring. Two devices form a ring of two hops.
    """
    found: list[Ring] = []
    used: dict[LinkDirection, float] = defaultdict(float)
    while (best := _RingSearch(wiring, devices, used)).rate > _WORTH_SHARE * (found[0][1] if found else 0.0):
        found.append((best.order, best.rate))
        for a, b in hops(best.order):
            for direction in wiring.directions(a, b):
                used[direction] += best.rate
    return tuple(found)


class _RingSearch:
    """Depth-first search for the ring whose narrowest link is widest, on the rates that other rings leave.

    It starts from the given order, tries the widest hop first and prunes hops that cannot beat the best ring so far.
    """

    def __init__(self, wiring: Wiring, devices: Sequence[str], used: Mapping[LinkDirection, float]) -> None:
        self.wiring, self.devices, self.used = wiring, tuple(devices), used
        self.order, self.rate = self.devices, 0.0
        # Complete up to 8 devices, which have 5,040 rings; beyond that the search is cut short.
        self.left = SEARCH_STEPS if len(devices) > EXHAUSTIVE_DEVICES else 1 << 60
        self.loads: dict[LinkDirection, int] = defaultdict(int)
        self._offer(self.devices)
        if len(self.devices) <= SEARCHED_DEVICES:
            # No ring is wider than this, because some hop must enter and leave every device.
            leave = [max(self._alone(a, b) for b in self.devices if b != a) for a in self.devices]
            enter = [max(self._alone(a, b) for a in self.devices if b != a) for b in self.devices]
            self._extend(self.devices[:1], min(*leave, *enter) * (1 - 1e-12))

    def _extend(self, path: tuple[str, ...], ceiling: float) -> None:
        others = (device for device in self.devices if device not in path)
        for following in sorted(others, key=lambda other: self._alone(path[-1], other), reverse=True):
            if self.left <= 0 or self.rate >= ceiling:
                return
            self.left -= 1
            directions = self.wiring.directions(path[-1], following)
            for direction in directions:
                self.loads[direction] += 1
            # A ring is as wide as its narrowest hop, and loads only grow: a ring through a narrower hop cannot win.
            if min(self._free(direction) / self.loads[direction] for direction in directions) > self.rate:
                longer = (*path, following)
                self._offer(longer) if len(longer) == len(self.devices) else self._extend(longer, ceiling)
            for direction in directions:
                self.loads[direction] -= 1

    def _alone(self, a: str, b: str) -> float:
        return min(map(self._free, self.wiring.directions(a, b)))

    def _free(self, direction: LinkDirection) -> float:
        return max(0.0, self.wiring.rate(direction) - self.used.get(direction, 0.0))

    def _offer(self, order: tuple[str, ...]) -> None:
        loads = Counter(direction for a, b in hops(order) for direction in self.wiring.directions(a, b))
        rate = min(self._free(direction) / load for direction, load in loads.items())
        if rate > self.rate:
            self.order, self.rate = order, rate


@dataclass(frozen=True)
class MachineCosts:
    """Collectives among groups of devices that communicate in parallel.

    Plain data parallelism is one group that holds the whole gradient. Workers of M devices form M groups: the first
    devices of all workers exchange the gradients that they hold; so do the second devices, and so on.

    `shares`: The share of the whole vector that each group holds; the shares add up to 1. `islands`: The first group's
    ranks in sets of equal size; links inside a set are better than links between sets. With fewer than two sets, or
    sets of one rank, there is no hierarchical algorithm.
    """

    wiring: Wiring
    groups: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = (1.0,)
    islands: tuple[tuple[int, ...], ...] = ()

    @property
    def devices(self) -> int:
        """The number of devices in a group."""
        return len(self.groups[0])

    def rounds(self, rounds: Sequence[Round]) -> AlphaBeta:
        """The cost of rounds that all groups do in parallel, linear in the bytes of the whole vector."""
        total = FREE
        for each in rounds:
            messages = (
                (group[a], group[b], held * share)
                for group, held in zip(self.groups, self.shares, strict=True)
                for a, b, share in each.steps
            )
            total += self.wiring.round(messages).times(each.times)
        return total

    def line(self, algorithm: CollectiveAlgorithm) -> AlphaBeta:
        """The cost of an algorithm, even if the library of these devices lacks it."""
        if algorithm.ring_passes:
            return self.ring_pass.times(algorithm.ring_passes)
        return self.rounds(algorithm.rounds(self.devices))

    @cached_property
    def ring_pass(self) -> AlphaBeta:
        """The cost of one pass around a ring per group, or around several rings if there is only one group."""
        if self.devices == 1:
            return FREE
        # Groups that run in parallel share links, and the search for rings sees only one group.
        plain = self.rounds(ring_pass_rounds(self.devices))
        if len(self.groups) > 1:
            return plain
        found = rings(self.wiring, self.groups[0])
        steps, rate = self.devices - 1, sum(rate for _, rate in found)
        latency_s = max(self.wiring.channel(a, b).latency_s for order, _ in found for a, b in hops(order))
        return AlphaBeta(steps * latency_s, steps / self.devices / rate)

    @cached_property
    def algorithms(self) -> Mapping[str, Mapping[str, AlphaBeta]]:
        """Collective → algorithm → cost, for the algorithms in the library of these devices.

        The hierarchical all-reduce consists of rings inside and across islands, which every library has.
        """
        library = library_of(self.wiring.topology)
        found: dict[str, dict[str, AlphaBeta]] = defaultdict(dict)
        for algorithm in ALGORITHMS:
            if library in algorithm.libraries:
                found[algorithm.collective][algorithm.name] = self.line(algorithm)
        if len(self.islands) > 1 and len(self.islands[0]) > 1:
            found["all-reduce"]["hierarchical"] = self.rounds(hierarchical_rounds(self.islands))
        return found

    def collectives(self, size_bytes: float) -> CollectiveCosts:
        """Collective → cost of its fastest algorithm for a vector of this size."""
        return {
            collective: min(lines.values(), key=lambda line: line.time_s(size_bytes))
            for collective, lines in self.algorithms.items()
        }


def library_of(topology: Topology) -> str:
    """The library of torch's process groups on these devices: gloo if all are CPU cores, else NCCL."""
    return GLOO if all(map(is_core, topology.devices)) else NCCL
