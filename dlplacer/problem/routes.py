"""Least-delay routes between devices: eq. 8, 9 and 11 of Pal et al. 2019, solved before placement.

Without contention the route of one edge has no effect on any other decision. So an optimal plan sends every tensor
along its route of least delay, and the model needs no routing variables C(e, l).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import TypeVar

from dlplacer.core.topology import Link, Topology
from dlplacer.problem.ticks import exact, ticks

Number = TypeVar("Number", float, Fraction)
Hop = tuple[str, str]
Route = tuple[str, ...]
"""Names of the nodes on a transfer's way, both ends included."""


def link_holds(
    topology: Topology, hops: Iterable[Hop], size_bytes: int, delay: str, number: Callable[[float], Number]
) -> list[tuple[Hop, Number, Number]]:
    """[hop] → (link direction, begin and end of its use in seconds after departure); the last end is the arrival.

    With cut-through a tensor streams through all links at once at the narrowest link's rate: it occupies each for bytes
    ÷ min B(l) + Σ L(l). With store-and-forward it passes from link to link (eq. 11): it occupies each in turn for bytes
    ÷ B(l) + L(l). `number` is `float`, or `dlplacer.problem.ticks.exact` for exact results.
    """
    links = [(topology.link_between[hop], hop) for hop in hops]
    if delay == "cut-through":
        narrowest = min(number(link.bytes_per_s) * link.count for link, _ in links)
        whole = size_bytes / narrowest + sum((number(link.latency_s) for link, _ in links), number(0))
        return [(link.direction(hop), number(0), whole) for link, hop in links]
    found, here = [], number(0)
    for link, hop in links:
        found.append((link.direction(hop), here, here + link_delay_s(link, size_bytes, number)))
        here = found[-1][2]
    return found


def link_directions(topology: Topology) -> list[Hop]:
    """Every link direction once: two for a full-duplex link, one for a half-duplex link; see `Link.direction`."""
    ends = ((link, (link.source, link.target)) for link in topology.links)
    return [*dict.fromkeys(link.direction(hop) for link, pair in ends for hop in (pair, pair[::-1]))]


def link_delay_s(link: Link, size_bytes: int, number: Callable[[float], Number]) -> Number:
    """bytes ÷ B(l) + L(l): the term of a single link in eq. 11."""
    return size_bytes / (number(link.bytes_per_s) * link.count) + number(link.latency_s)


RoutesByPair = Mapping[tuple[str, str], Route]
"""(source device, target device) → route; pairs that no route joins are absent."""

_Choices = dict[Hop, list[tuple[Fraction, Fraction, Route]]]
"""(source, target) → (seconds per byte, Σ latencies, route) of candidate routes."""


def least_delay_routes(
    topology: Topology, sizes_bytes: Iterable[int], delay: str = "store-and-forward"
) -> dict[int, RoutesByPair]:
    """Bytes → route of least delay for every pair of different devices that a route joins.

    The delay of a route is linear in the bytes, so a route that is best for two sizes is best for all sizes between.
    These are searched only if the routes of the two differ. See `link_holds` for the delays.
    """
    sizes = sorted(set(sizes_bytes))
    tables: dict[int, RoutesByPair] = {}
    routes: _Choices = {
        hop: [(1 / _rate(link), exact(link.latency_s), hop)] for hop, link in topology.link_between.items()
    }
    if delay == "cut-through":
        routes = _direct_routes(topology)

    def search(low: int, high: int) -> None:
        if high - low < 2:
            return
        if tables[sizes[low]] == tables[sizes[high]]:
            tables.update((size, tables[sizes[low]]) for size in sizes[low + 1 : high])
            return
        middle = (low + high) // 2
        tables[sizes[middle]] = _joined_routes(topology, routes, sizes[middle])
        search(low, middle)
        search(middle, high)

    for end in {0, len(sizes) - 1} if sizes else ():
        tables[sizes[end]] = _joined_routes(topology, routes, sizes[end])
    search(0, len(sizes) - 1)
    return tables


def route_delay(topology: Topology, route: Route, size_bytes: int, delay: str = "store-and-forward") -> Fraction:
    """Δe of eq. 11 in seconds: Σ of bytes/B(l) + L(l) over links; with cut-through, the sum of segment delays."""
    holds = (link_holds(topology, pairwise(part), size_bytes, delay, exact) for part in segments(topology, route))
    return sum((held[-1][2] for held in holds), Fraction(0))


def route_lines(topology: Topology, delay: str) -> Callable[[Route], tuple[Fraction, Fraction]]:
    """A function that maps a route to its delay, linear in the bytes: (seconds per byte, seconds for 0 bytes).

    Routes over the same kinds of links share one result; a cluster has few kinds.
    """
    known: dict[tuple[object, ...], tuple[Fraction, Fraction]] = {}

    def kinds(route: Route) -> Iterator[object]:
        for hop in pairwise(route):
            link = topology.link_between[hop]
            yield link.bytes_per_s, link.count, link.latency_s, hop[1] in topology.device_index

    def line(route: Route) -> tuple[Fraction, Fraction]:
        key = tuple(kinds(route))
        if key not in known:
            none_s, byte_s = (route_delay(topology, route, size_bytes, delay) for size_bytes in (0, 1))
            known[key] = byte_s - none_s, none_s
        return known[key]

    return line


def any_relays(topology: Topology, tables: Iterable[RoutesByPair]) -> bool:
    """True if some route of the tables passes through a device, which then holds relayed tensors for a while."""
    distinct = {id(table): table for table in tables}.values()
    return any(node in topology.device_index for table in distinct for route in table.values() for node in route[1:-1])


def segments(topology: Topology, route: Route) -> Iterator[Route]:
    """The route segments of a route between devices: at a relaying device, one segment ends and the next begins."""
    begin = 0
    for position in range(1, len(route)):
        if route[position] in topology.device_index:
            yield route[begin : position + 1]
            begin = position


def _direct_routes(topology: Topology) -> _Choices:
    """Candidates for the quickest cut-through route of each device pair, through routers only.

    For every rate, the route of least latency over links of at least this rate: no other route can have less delay.
    """
    import networkx as nx

    routes: _Choices = {}
    line = route_lines(topology, "cut-through")
    for rate in sorted({_rate(link) for link in topology.links}):
        graph = nx.DiGraph()
        for (source, target), link in topology.link_between.items():
            if _rate(link) >= rate:
                graph.add_edge(source, target, latency_s=link.latency_s)
        for device in (name for name in topology.device_index if name in graph):
            others = [name for name in topology.device_index if name != device]
            for other in (name for name in others if name in graph):
                routers = graph.subgraph(set(graph).difference(others) | {other})
                if nx.has_path(routers, device, other):
                    route = tuple(nx.shortest_path(routers, device, other, weight="latency_s"))
                    routes.setdefault((device, other), []).append((*line(route), route))
    return routes


def _joined_routes(topology: Topology, routes: _Choices, size_bytes: int) -> RoutesByPair:
    """The routes of least delay: shortest paths over links, or for cut-through over direct routes, relays included."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(topology.device_index)
    for (source, target), choices in routes.items():
        delay_s, route = min(
            (float(size_bytes * s_per_byte + latency_s), route) for s_per_byte, latency_s, route in choices
        )
        graph.add_edge(source, target, delay_s=delay_s, route=route)
    table = {}
    for source in topology.device_index:
        for target, stops in nx.single_source_dijkstra_path(graph, source, weight="delay_s").items():
            if target != source and target in topology.device_index:
                parts = [graph.edges[hop]["route"][1:] for hop in pairwise(stops)]
                table[source, target] = (source, *(node for part in parts for node in part))
    return table


def _rate(link: Link) -> Fraction:
    return exact(link.bytes_per_s) * link.count


NOWHERE, HERE = -2, -1
"""Positions for device pairs that no route joins, and for a device with itself."""

Matrix = tuple[tuple[int | None, ...], ...]
"""[source device][target device] → ticks; 0 on the diagonal, None if no route exists."""


@dataclass(frozen=True, eq=False)
class Lines:
    """The delays of all routes in one table, linear in the bytes.

    `lines` has the distinct delays, as (seconds per byte, seconds for 0 bytes) for each segment of a route. `between`
    is [source device][target device] → position in `lines`, or `HERE` or `NOWHERE`.
    """

    lines: tuple[tuple[tuple[Fraction, Fraction], ...], ...]
    between: tuple[tuple[int, ...], ...]

    def seconds(self, size_bytes: int) -> tuple[tuple[Fraction, ...], ...]:
        """[line][segment] → delay in seconds of a tensor of this size."""
        return tuple(tuple(size_bytes * s_per_byte + none_s for s_per_byte, none_s in line) for line in self.lines)


def lines_of(topology: Topology, routes: Sequence[RoutesByPair], delay: str) -> list[Lines]:
    """[size] → `Lines` of the routes for this size; sizes with the same table share one object."""
    line_of, names, known = route_lines(topology, delay), list(topology.device_index), dict[int, Lines]()
    for table in {id(table): table for table in routes}.values():
        pairs = {pair: tuple(map(line_of, segments(topology, route))) for pair, route in table.items()}
        numbers = {line: number for number, line in enumerate(dict.fromkeys(pairs.values()))}
        place = {pair: numbers[line] for pair, line in pairs.items()} | {(name, name): HERE for name in names}
        between = tuple(tuple(place.get((source, target), NOWHERE) for target in names) for source in names)
        known[id(table)] = Lines(tuple(numbers), between)
    return [known[id(table)] for table in routes]


def matrices(
    lines: Sequence[Lines], seconds: Sequence[tuple[tuple[Fraction, ...], ...]], tick_s: Fraction
) -> tuple[Matrix, ...]:
    """[size] → its delays in ticks: every part in `seconds` ([size][line][part]) is rounded down by itself."""

    @cache
    def matrix(line: Lines, in_ticks: tuple[int, ...]) -> Matrix:
        look_up = [*in_ticks, None, 0].__getitem__
        return tuple(tuple(map(look_up, row)) for row in line.between)

    in_ticks = (tuple(sum(ticks(part, tick_s) for part in parts) for parts in values) for values in seconds)
    return tuple(map(matrix, lines, in_ticks))
