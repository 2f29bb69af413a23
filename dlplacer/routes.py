"""Least-delay routes between devices: eq. 8, 9 and 11 solved ahead of placement.

Without contention the route of one edge has no effect on any other decision, so the best plan sends every tensor along
the route of least delay for its bytes, and the routing variables C(e, l) need no place in the model.
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from dlplacer.topology import Topology
from dlplacer.units import exact

Route = tuple[str, ...]
"""Names of the nodes that a transfer visits, both ends included."""

RouteTable = Mapping[tuple[str, str], Route]
"""(source device, target device) → route; pairs that no way joins are absent."""


def least_delay_routes(topology: Topology, sizes_bytes: Iterable[int]) -> dict[int, RouteTable]:
    """Bytes → for every pair of different devices the route of least delay by eq. 11.

    The delay of a route is linear in the bytes, so a route that is best for two sizes is best for all between: only
    where two sizes disagree are those between them searched.
    """
    sizes = sorted(set(sizes_bytes))
    graph = topology.to_networkx()
    tables: dict[int, RouteTable] = {}

    def search(low: int, high: int) -> None:
        if high - low < 2:
            return
        if tables[sizes[low]] == tables[sizes[high]]:
            tables.update((size, tables[sizes[low]]) for size in sizes[low + 1 : high])
            return
        middle = (low + high) // 2
        tables[sizes[middle]] = _search_table(graph, topology, sizes[middle])
        search(low, middle)
        search(middle, high)

    for end in {0, len(sizes) - 1} if sizes else ():
        tables[sizes[end]] = _search_table(graph, topology, sizes[end])
    search(0, len(sizes) - 1)
    return tables


def route_delay(topology: Topology, route: Route, size_bytes: int) -> Fraction:
    """Δe of eq. 11 in seconds: Σ over the links of bytes/B(l) + L(l)."""
    links = (topology.link_between[hop] for hop in zip(route, route[1:], strict=False))
    return sum(
        (size_bytes / (exact(link.bytes_per_s) * link.count) + exact(link.latency_s) for link in links), Fraction(0)
    )


def segments(topology: Topology, route: Route) -> Iterator[Route]:
    """The stretches of a route between devices: where a device relays, one ends and the next begins."""
    begin = 0
    for position in range(1, len(route)):
        if route[position] in topology.device_index:
            yield route[begin : position + 1]
            begin = position


def _search_table(graph: Any, topology: Topology, size_bytes: int) -> dict[tuple[str, str], Route]:
    import networkx as nx

    def delay_s(_source: str, _target: str, data: Mapping[str, Any]) -> float:
        link = data["link"]
        return float(size_bytes / link.total_bytes_per_s + link.latency_s)

    table = {}
    for device in topology.devices:
        paths = nx.single_source_dijkstra_path(graph, device.id, weight=delay_s)
        for other in topology.devices:
            if other.id != device.id and other.id in paths:
                table[device.id, other.id] = tuple(paths[other.id])
    return table
