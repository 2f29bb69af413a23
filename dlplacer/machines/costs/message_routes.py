"""Messages over the links of a real machine: their routes, and their costs on shared links."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.collectives import FREE, AlphaBeta

Message = tuple[str, str, float]
"""Sending device, receiving device, share of the full vector that the message carries."""

LinkDirection = tuple[str, str]
"""A link in one direction; a half-duplex link is one link direction, its ends in order of name."""


class Wiring:
    """The routes between the devices of a topology.

    A message takes the route of the highest rate through routers, among those the one of least latency; only where
    no routers join two devices do other devices relay. Both directions take the same route.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._routes_from: dict[str, dict[str, tuple[str, ...]]] = {}
        self._directions: dict[tuple[str, str], tuple[LinkDirection, ...]] = {}
        self._channels: dict[tuple[str, str], AlphaBeta] = {}

    def route(self, source: str, target: str) -> tuple[str, ...]:
        """The nodes that a message visits, both ends included.

        Raises
        ------
        InfeasibleError
            If no links join them.
        """
        for name in (source, target):
            if name not in self.topology.device_index:
                raise InputError(f"{name!r} is not a device of topology {self.topology.name!r}; use one that it lists")
        # One search serves both directions, and the rounds of a pull are those of the push turned round.
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
        """The line of one message that has the links to itself; nothing from a device to itself."""
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
        """The line of messages that all start at once.

        Messages share a link direction by taking turns or splitting its rate, so that the link direction with the most
        bytes for its rate decides β; α is the largest latency of any of them. Messages to oneself cost nothing.
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
        """Target device → its route: of the highest rate, then of least latency."""
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
