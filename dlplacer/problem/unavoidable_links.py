"""Links that no route between two devices avoids: what a transfer holds whatever route it takes."""

from functools import cache
from itertools import pairwise

from dlplacer.core.topology import Topology


class UnavoidableLinks:
    """The links of a machine without which some devices would be cut off: all of them on stars, trees and clusters."""

    def __init__(self, topology: Topology) -> None:
        import networkx as nx

        self._graph = nx.Graph((link.source, link.target) for link in topology.links)
        self._devices = {device.id for device in topology.devices}
        self._bridges = {frozenset(ends) for ends in nx.bridges(self._graph) if self._parts_devices(ends)}
        self.between = cache(self._between)

    @property
    def any(self) -> bool:
        """True if there is one; in rings, and where all devices are joined to all, there is none."""
        return bool(self._bridges)

    def _parts_devices(self, ends: tuple[str, str]) -> bool:
        """True if devices lie on both sides of a bridge: routers alone may be left over on a part of a machine."""
        import networkx as nx

        rest = nx.restricted_view(self._graph, (), [ends])
        return all(self._devices & nx.node_connected_component(rest, end) for end in ends)

    def _between(self, source: str, target: str) -> tuple[tuple[str, str], ...]:
        """The hops that every route from one device to another takes, in the order in which all of them take them.

        Proof: a route that avoids a bridge would join what the bridge separates. A route visits no node twice, so it
        crosses each bridge once; and behind a bridge lie the same other bridges for every route.
        """
        import networkx as nx

        path = nx.shortest_path(self._graph, source, target)
        return tuple(hop for hop in pairwise(path) if frozenset(hop) in self._bridges)
