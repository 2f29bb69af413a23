"""The routes between a machine's devices in ticks, the times for which a tensor occupies links, and transfer requests.

Solvers need these routes if links carry one transfer at a time, or if copies take memory. Otherwise the delays of
`dlplacer.problem.problem` suffice.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from itertools import islice, pairwise
from typing import Any

from dlplacer.core.topology import Topology
from dlplacer.problem.live_memory import may_bind
from dlplacer.problem.problem import Arc, Problem
from dlplacer.problem.routes import (
    Hop,
    Route,
    any_relays,
    link_delay_s,
    link_directions,
    link_holds,
    route_delay,
    segments,
)
from dlplacer.problem.ticks import exact

_MOST_SEGMENTS = 32
"""Route segments distinguished between two devices; only dozens of parallel routers have more."""


def route_segments(topology: Topology) -> dict[str, list[Route]] | None:
    """Device → all route segments that begin there: simple paths to another device through routers only.

    None if more than 32 route segments join two devices.
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
    """Every route from `ends[0]` to `ends[1]` whose segments take at most `most_ticks` in sum, in no fixed order.

    A route visits no node twice. A partial route is extended only while its ticks plus the least remaining delay stay
    within the limit. A segment's ticks do not depend on the segments before it, so no route is missed. `ticks` returns
    the ticks of a segment, and `least` the least remaining delay from a device, which is 0 at the end of the route.
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


_MOST_ROUTES = 4
"""Routes that solvers consider per device pair; in the model each adds a literal per request and pair. Three fully
joined devices have only two. Never tuned."""


@dataclass(frozen=True, slots=True)
class RouteSegment:
    """A segment of a route: its hops, the device where it ends, and ticks from the start to the tensor's arrival.

    `holds`: (link direction, offset from the segment's start, length) of each link use in ticks, rounded inwards.
    """

    hops: tuple[Hop, ...]
    target: int
    ticks: int
    holds: tuple[tuple[int, int, int], ...]


TimedRoute = tuple[RouteSegment, ...]
"""The segments of a route from device to device: more than one if devices relay."""


class RouteTable:
    """The routes between the devices of a problem's machine, in ticks.

    `chooses` is True if links are contended, or if a relay may lack memory for tensors in transit. A transfer may then
    take any route, or with ``routing: shortest`` any route of least delay.
    """

    def __init__(self, problem: Problem) -> None:
        contended = problem.options.contention == "link"
        self.problem = problem
        directions = link_directions(problem.topology) if contended else ()
        self._numbers = {direction: number for number, direction in enumerate(directions)}
        self._routes_by_pair: dict[tuple[int, int, int], tuple[TimedRoute, ...]] = {}
        self._paths: dict[tuple[str, str], list[Route]] = {}
        self._swappable: dict[tuple[int, int], bool] = {}
        self._timed: dict[tuple[tuple[Hop, ...], int], RouteSegment] = {}
        self.chooses = contended or (may_bind(problem) and any_relays(problem.topology, problem.routes))

    def longest(self, size: int) -> int:
        """Upper bound on the ticks for which a tensor is in transit between any two devices, by any route.

        Proof: a route visits no node twice, and under both delay rules it takes no longer than its links in turn (eq.
        11).
        """
        topology, size_bytes = self.problem.topology, self.problem.sizes_bytes[size]
        slowest = sorted((link_delay_s(link, size_bytes, exact) for link in topology.links), reverse=True)
        longest_s = sum(slowest[: len(topology.nodes) - 1], Fraction(0))
        return min(self.problem.most, math.ceil(longest_s / self.problem.tick_s))

    @cached_property
    def complete(self) -> bool:
        """True if `between` returns every route that a transfer may take."""
        names = list(self.problem.topology.device_index)
        return not self.chooses or (
            len(names) <= _MOST_ROUTES
            and all(len(self._routes((a, b))) <= _MOST_ROUTES for a in names for b in names if a != b)
        )

    def swappable(self, a: int, b: int) -> bool:
        """True if two devices, and routers if needed, can change places without a change of the links."""
        if (a, b) not in self._swappable:
            self._swappable[a, b] = _swaps(self.problem.topology, *self._pair(a, b))
        return self._swappable[a, b]

    def joined(self, size: int, source: int, target: int) -> bool:
        """True if there is any route between two devices."""
        return self._pair(source, target) in self.problem.routes[size]

    def quickest(self, size: int, source: int, target: int) -> TimedRoute:
        """The route of least delay between two devices."""
        return self._segments(self.problem.routes[size][self._pair(source, target)], size)

    def between(self, size: int, source: int, target: int) -> tuple[TimedRoute, ...]:
        """At most four routes between two devices, sorted by delay."""
        key = size, source, target
        if key not in self._routes_by_pair:
            pair = self._pair(source, target)
            others = [route for route in self._routes(pair) if route != self.problem.routes[size][pair]]
            if self.problem.options.routing == "shortest":
                others = self._of_least_delay(others, size, pair)
            timed = sorted((self._segments(route, size) for route in others), key=_ticks)
            self._routes_by_pair[key] = self.quickest(*key), *timed[: _MOST_ROUTES - 1]
        return self._routes_by_pair[key]

    def along(self, segments: Sequence[Sequence[Hop]], size: int) -> TimedRoute:
        """The route in ticks for tensors of one size; each of `segments` has the hops from device to device."""
        return tuple(self._segment(tuple(hops), size) for hops in segments)

    def within(self, size: int, source: int, target: int, most_ticks: int, most: int) -> tuple[TimedRoute, ...] | None:
        """All routes of at most `most_ticks` between two devices, by delay; None if more than `most` may exist."""
        if not self.chooses:
            return tuple(route for route in (self.quickest(size, source, target),) if _ticks(route) <= most_ticks)
        if self._route_segments is None:
            return None
        number, pair = self.problem.topology.device_index, self._pair(source, target)
        # Every segment is rounded down, so the slower of two routes may have fewer ticks, by up to one per segment.
        rounding = len(number)
        only_least = self.problem.options.routing == "shortest"
        if only_least:
            most_ticks = min(most_ticks, _ticks(self.quickest(size, source, target)) + rounding)

        def ticks_of(segment: Route) -> int:
            return self._segment(tuple(pairwise(segment)), size).ticks

        @cache
        def least(device: str) -> int:
            if device == pair[1]:
                return 0
            return max(0, _ticks(self.quickest(size, number[device], target)) - rounding)

        found = list(islice(routes_within(self._route_segments, ticks_of, least, pair, most_ticks), most + 1))
        if len(found) > most:
            return None
        if only_least:
            found = self._of_least_delay(found, size, pair)
        return tuple(sorted((self._segments(route, size) for route in found), key=_ticks))

    def _of_least_delay(self, routes: Iterable[Route], size: int, pair: tuple[str, str]) -> list[Route]:
        problem = self.problem

        def delay(route: Route) -> Fraction:
            return route_delay(problem.topology, route, problem.sizes_bytes[size], problem.options.delay)

        least = delay(problem.routes[size][pair])
        return [route for route in routes if delay(route) == least]

    @cached_property
    def _route_segments(self) -> Mapping[str, Sequence[Route]] | None:
        return route_segments(self.problem.topology)

    def _routes(self, pair: Hop) -> list[Route]:
        if self.chooses and pair not in self._paths:
            self._paths[pair] = _simple_paths(self.problem.topology, pair, self.problem.sizes_bytes)
        return self._paths.get(pair, [])

    def _pair(self, source: int, target: int) -> tuple[str, str]:
        devices = self.problem.topology.devices
        return devices[source].id, devices[target].id

    def _segments(self, route: Route, size: int) -> TimedRoute:
        return tuple(self._segment(tuple(pairwise(part)), size) for part in segments(self.problem.topology, route))

    def _segment(self, hops: tuple[Hop, ...], size: int) -> RouteSegment:
        if (hops, size) not in self._timed:
            problem = self.problem
            # A start s is floor(s) in ticks. If one transfer leaves a link before another takes it, s1 + e1 <= s2 + b2,
            # then floor(s1) + floor(e1) <= floor(s2) + ceil(b2): with b rounded down a bound would be a tick too high.
            size_bytes, tick_s = problem.sizes_bytes[size], problem.tick_s
            held = link_holds(problem.topology, hops, size_bytes, problem.options.delay, exact)
            spans = [(name, math.ceil(begin_s / tick_s), math.floor(end_s / tick_s)) for name, begin_s, end_s in held]
            taken = spans if self._numbers else ()
            holds = tuple((self._numbers[name], begin, max(0, end - begin)) for name, begin, end in taken)
            target = problem.topology.device_index[hops[-1][1]]
            self._timed[hops, size] = RouteSegment(hops, target, spans[-1][2], holds)
        return self._timed[hops, size]


def _ticks(route: TimedRoute) -> int:
    return sum(segment.ticks for segment in route)


def _simple_paths(topology: Topology, pair: tuple[str, str], sizes_bytes: Sequence[int]) -> list[Route]:
    """The simple paths of least delay for the smallest and for the largest tensor."""
    import networkx as nx

    graph, found = topology.to_networkx(), dict[Route, None]()
    if not nx.has_path(graph, *pair):
        return []
    for size_bytes in {*sizes_bytes[:1], *sizes_bytes[-1:]}:
        for _, _, data in graph.edges(data=True):
            data["delay_s"] = link_delay_s(data["link"], size_bytes, float)
        for path in islice(nx.shortest_simple_paths(graph, *pair, weight="delay_s"), _MOST_ROUTES + 1):
            found[tuple(path)] = None
    return list(found)


def _swaps(topology: Topology, a: str, b: str) -> bool:
    import networkx as nx

    there, back = topology.to_networkx(), topology.to_networkx()
    fixed = {name: name for name in topology.device_index}
    nx.set_node_attributes(there, fixed, "name")
    nx.set_node_attributes(back, {**fixed, a: b, b: a}, "name")

    def same_link(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        links = one["link"], other["link"]
        keys = [(link.bytes_per_s, link.count, link.latency_s, link.duplex) for link in links]
        return keys[0] == keys[1]

    return bool(nx.is_isomorphic(there, back, lambda one, other: one.get("name") == other.get("name"), same_link))


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """A tensor to send and the ops that wait for it: all its readers, or one reader if every edge has its own transfer.

    `size` is the position of its bytes in `Problem.sizes_bytes`. `keepers` are all readers of the tensor: a copy stays
    on a device until the last keeper there has ended.
    """

    tensor: str = field(compare=False)
    source: int
    size: int
    readers: tuple[int, ...]
    keepers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScheduledTransfer:
    """A transfer request sent to a device, with one start tick per route segment."""

    request: int
    target: int
    route: TimedRoute
    start: tuple[int, ...]

    @property
    def end(self) -> int:
        """The tick at which the tensor arrives."""
        return self.start[-1] + self.route[-1].ticks


@dataclass(frozen=True)
class Traffic:
    """The transfer requests of all tensors that are read, and the routes that the transfers may take."""

    routes: RouteTable
    requests: tuple[TransferRequest, ...]


def build_traffic(problem: Problem) -> Traffic:
    """The routes and transfer requests of a problem."""
    return Traffic(RouteTable(problem), transfer_requests(problem))


def transfer_requests(problem: Problem) -> tuple[TransferRequest, ...]:
    """The transfer requests of all tensors read in a problem."""
    if transfer_requests in problem.derived:
        return problem.derived[transfer_requests]  # type: ignore[no-any-return]
    arcs_of: dict[str, list[Arc]] = {}
    for edge, arc in zip(problem.graph.edges, problem.arcs, strict=True):
        arcs_of.setdefault(edge.tensor, []).append(arc)
    keepers = {tensor: tuple(dict.fromkeys([arc.target for arc in arcs])) for tensor, arcs in arcs_of.items()}
    sent = [(tensor, arcs[0], keepers[tensor]) for tensor, arcs in arcs_of.items()]
    if problem.options.transfers != "device":
        edges = zip(problem.graph.edges, problem.arcs, strict=True)
        sent = [(edge.tensor, arc, (arc.target,)) for edge, arc in edges]
    found = tuple(
        TransferRequest(tensor, first.source, first.size, readers, keepers[tensor]) for tensor, first, readers in sent
    )
    problem.derived[transfer_requests] = found
    return found
