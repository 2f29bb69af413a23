"""All routes between two devices within some ticks, of which a proof may leave none out, and links that none avoids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, pairwise

from dlplacer.core.topology import Topology
from dlplacer.problem.routes import Route

_MOST_SEGMENTS = 32
"""Route segments between two devices that are told apart; more take dozens of routers side by side."""


def route_segments(topology: Topology) -> dict[str, list[Route]] | None:
    """Device → all route segments that begin there: simple paths to another device through routers only.

    None if more than 32 of them join two devices.
    """
    import networkx as nx

    graph = topology.to_networkx()
    routers = [router.id for router in topology.routers]
    found: dict[str, list[Route]] = {}
    for device in topology.device_index:
        found[device] = []
        for other in topology.device_index:
            if other != device:
                between = graph.subgraph([device, *routers, other])
                paths = list(islice(nx.all_simple_paths(between, device, other), _MOST_SEGMENTS + 1))
                if len(paths) > _MOST_SEGMENTS:
                    return None
                found[device].extend(map(tuple, paths))
    return found


def routes_within(
    segments: Mapping[str, Sequence[Route]],
    ticks: Callable[[Route], int],
    least: Callable[[str], int],
    ends: tuple[str, str],
    most_ticks: int,
) -> Iterator[Route]:
    """Every route between two devices whose segments together take at most some ticks, in no order.

    A route visits no node twice. It is followed only while what it has taken so far and the least delay of what is
    left stay within the limit: a segment takes as long whatever comes before it, so no route is missed.

    Parameters
    ----------
    segments
        The result of `route_segments`.
    ticks
        Route segment → ticks that it takes.
    least
        Device → ticks of the least delay from there to the end of the route; 0 at the end itself.
    """
    source, target = ends
    pending: list[tuple[Route, int]] = [((source,), 0)]
    while pending:
        route, spent = pending.pop()
        for segment in segments[route[-1]]:
            here = spent + ticks(segment)
            if here + least(segment[-1]) > most_ticks or not set(route).isdisjoint(segment[1:]):
                continue
            if segment[-1] == target:
                yield (*route, *segment[1:])
            else:
                pending.append(((*route, *segment[1:]), here))


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
