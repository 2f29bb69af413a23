"""An oracle for tiny problems under every option: every placement, route, order and, where memory counts, delay.

It works on the graph and the machine as the user gives them and shares no code with the solvers,
`dlplacer.problem.problem` or `dlplacer.problem.routes`. Half-duplex links under store-and-forward are beyond it where
routes have more than one hop.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product

from solvers.brute_force import placements

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Topology

Route = tuple[str, ...]
Memory = list[tuple[str, Fraction, Fraction, int]]
"""(device, from, to, bytes)."""


@dataclass(frozen=True)
class Activity:
    """An op or a route segment of a transfer.

    Attributes
    ----------
    after
        Activities that must have ended before it starts.
    holds
        (resource, offset, time) of the devices and links that it occupies.
    release_s, since
        It starts no earlier than so long after the last of some activities has ended; after 0 if there are none.
    """

    time_s: Fraction
    after: tuple[int, ...]
    holds: tuple[tuple[object, Fraction, Fraction], ...]
    release_s: Fraction = Fraction(0)
    since: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sent:
    """A transfer: its route segments as activities, and where each ends."""

    tensor: str
    source: int
    target: str
    size: int
    parts: tuple[tuple[int, str], ...]


Variants = Callable[[tuple[Device, ...], list[Activity], list[Sent]], Iterable[list[Activity]]]
"""A placement, its activities and its transfers → the activities under further rules, each way to obey them."""


def optimum_under(
    graph: OpGraph, topology: Topology, options: Options, variants: Variants = lambda _, activities, __: [activities]
) -> Fraction | None:
    """The least makespan in seconds, or None if no plan exists."""
    best: Fraction | None = None
    roomy = Topology(tuple(Device(d.id, type=d.type) for d in topology.devices), topology.routers, topology.links)
    for placement in placements(graph, topology if options.memory == "sum" else roomy):
        for activities, sent in _activities(graph, topology, options, placement):
            for variant in variants(placement, activities, sent):
                search = _Search(graph, topology, options, placement, variant, sent, best)
                search.run()
                best = search.best
    return best


def _activities(
    graph: OpGraph, topology: Topology, options: Options, placement: tuple[Device, ...]
) -> Iterator[tuple[list[Activity], list[Sent]]]:
    """Ops and route segments for every choice of routes."""
    where = {op.id: device.id for op, device in zip(graph.ops, placement, strict=True)}
    wanted: dict[tuple[object, str], list[int]] = {}
    for number, edge in enumerate(graph.edges):
        if where[edge.source] != where[edge.target]:
            name = edge.tensor if options.transfers == "device" else number
            wanted.setdefault((name, where[edge.target]), []).append(number)
    edges = graph.edges
    routes = [
        routes_between(topology, options, where[edges[numbers[0]].source], target, edges[numbers[0]].bytes)
        for (_, target), numbers in wanted.items()
    ]
    for chosen in product(*routes):
        segments: list[Activity] = []
        arrival: dict[int, int] = {}
        sent: list[Sent] = []
        for ((_, target), numbers), route in zip(wanted.items(), chosen, strict=True):
            edge = edges[numbers[0]]
            before, parts = graph.index[edge.source], []
            for part in cut_at_devices(topology, route):
                segments.append(segment_of(topology, options, part, edge.bytes, before))
                before = len(graph.ops) + len(segments) - 1
                parts.append((before, part[-1]))
            arrival.update(dict.fromkeys(numbers, before))
            sent.append(Sent(edge.tensor, graph.index[edge.source], target, edge.bytes, tuple(parts)))
        later = [i for i, op in enumerate(graph.ops) if op.phase in ("backward", "optimizer")]
        ops = []
        for position, op in enumerate(graph.ops):
            after = [
                arrival.get(number, graph.index[edge.source])
                for number, edge in enumerate(edges)
                if edge.target == op.id
            ]
            if options.step == "autograd" and position in later:
                after += [other for other in range(len(graph.ops)) if other not in later]
            time_s = seconds_on(op, placement[position])
            ops.append(Activity(time_s, tuple(after), ((placement[position].id, Fraction(0), time_s),)))
        yield [*ops, *segments], sent


def routes_between(topology: Topology, options: Options, source: str, target: str, size: int) -> list[Route]:
    found: list[Route] = []

    def walk(route: Route) -> None:
        if route[-1] == target:
            found.append(route)
            return
        for link in topology.links:
            for here, there in ((link.source, link.target), (link.target, link.source)):
                if here == route[-1] and there not in route:
                    walk((*route, there))

    walk((source,))
    if options.routing == "free":
        return found
    delay = {route: _delay_s(topology, options, route, size) for route in found}
    return [route for route in found if delay[route] == min(delay.values())]


def _delay_s(topology: Topology, options: Options, route: Route, size: int) -> Fraction:
    parts = cut_at_devices(topology, route)
    return sum((segment_of(topology, options, part, size, 0).time_s for part in parts), Fraction(0))


def cut_at_devices(topology: Topology, route: Route) -> list[Route]:
    cuts = [i for i, node in enumerate(route) if node in topology.device_index]
    return [route[a : b + 1] for a, b in pairwise(cuts)]


def segment_of(topology: Topology, options: Options, route: Route, size: int, before: int) -> Activity:
    links = [topology.link_between[hop] for hop in pairwise(route)]
    resources: list[object] = [
        hop if link.duplex == "full" else frozenset(hop) for hop, link in zip(pairwise(route), links, strict=True)
    ]
    carry = [Fraction(size) / (Fraction(str(link.bytes_per_s)) * link.count) for link in links]
    latency = [Fraction(str(link.latency_s)) for link in links]
    if options.delay == "cut-through":
        time_s = max(carry) + sum(latency)
        holds = [(resource, Fraction(0), time_s) for resource in resources]
    else:
        spans = [a + b for a, b in zip(carry, latency, strict=True)]
        time_s = sum(spans, Fraction(0))
        holds = [(resource, sum(spans[:i], Fraction(0)), spans[i]) for i, resource in enumerate(resources)]
    return Activity(time_s, (before,), tuple(holds) if options.contention == "link" else ())


def seconds_on(op: Op, device: Device) -> Fraction:
    time_s = op.time_s[device.type] if isinstance(op.time_s, dict) else op.time_s
    return Fraction(str(time_s))


class _Search:
    """All orders of the activities of one placement and choice of routes.

    Without memory over time every activity starts as early as those before it allow. With it, starts do not fall along
    the order, and each is 0 or the end of another activity: pushed as early as it can be, it waits for such an end.
    """

    def __init__(
        self,
        graph: OpGraph,
        topology: Topology,
        options: Options,
        placement: tuple[Device, ...],
        activities: list[Activity],
        sent: list[Sent],
        best: Fraction | None,
    ) -> None:
        self.graph, self.topology, self.placement = graph, topology, placement
        self.activities, self.sent, self.best = activities, sent, best
        self.live = options.memory == "live" and any(d.memory_bytes is not None for d in topology.devices)

    def run(self) -> None:
        self._extend({}, Fraction(0))

    def _extend(self, start: dict[int, Fraction], now: Fraction) -> None:
        ops = range(len(self.graph.ops))
        end = max((start[op] + self.activities[op].time_s for op in ops if op in start), default=Fraction(0))
        if self.best is not None and end >= self.best:
            return
        if len(start) == len(self.activities):
            if not self.live or self._fits(start):
                self.best = end
            return
        if self.live and not self._fits(start):
            return
        for number, activity in enumerate(self.activities):
            if number in start or any(before not in start for before in activity.after):
                continue
            for begin in self._starts(activity, start, now):
                self._extend({**start, number: begin}, begin if self.live else now)

    def _starts(self, activity: Activity, start: dict[int, Fraction], now: Fraction) -> list[Fraction]:
        ended = {number: begin + self.activities[number].time_s for number, begin in start.items()}
        since = max((ended[before] for before in activity.since), default=Fraction(0))
        ready = max([since + activity.release_s, *(ended[before] for before in activity.after)])
        if not self.live:
            for resource, offset, _ in activity.holds:
                ready = max([ready, *(free - offset for free in self._frees(resource, start))])
            return [ready]
        ends = {Fraction(0), ready, *(begin + self.activities[other].time_s for other, begin in start.items())}
        return sorted(t for t in ends if t >= max(now, ready) and self._free(activity, t, start))

    def _frees(self, resource: object, start: dict[int, Fraction]) -> list[Fraction]:
        return [
            begin + offset + time_s
            for other, begin in start.items()
            for used, offset, time_s in self.activities[other].holds
            if used == resource
        ]

    def _free(self, activity: Activity, begin: Fraction, start: dict[int, Fraction]) -> bool:
        for resource, offset, time_s in activity.holds:
            mine = begin + offset, begin + offset + time_s
            for other, since in start.items():
                for used, skipped, spent in self.activities[other].holds:
                    theirs = since + skipped, since + skipped + spent
                    if used == resource and mine[0] < theirs[1] and theirs[0] < mine[1]:
                        return False
        return True

    def _fits(self, start: dict[int, Fraction]) -> bool:
        """Whether memory suffices for what has started, as if nothing else came."""
        lives = self._lives(start)
        for device in self.topology.devices:
            if device.memory_bytes is None:
                continue
            resident = sum(
                op.weight_bytes + op.gradient_bytes + op.state_bytes
                for op, here in zip(self.graph.ops, self.placement, strict=True)
                if here.id == device.id
            )
            mine = [life for life in lives if life[0] == device.id and life[1] < life[2]]
            for _, moment, _, _ in mine:
                if resident + sum(size for _, a, b, size in mine if a <= moment < b) > device.memory_bytes:
                    return False
            if resident > device.memory_bytes:
                return False
        return True

    def _lives(self, start: dict[int, Fraction]) -> Memory:
        end = {number: begin + self.activities[number].time_s for number, begin in start.items()}
        edges = [
            (self.graph.index[edge.source], self.graph.index[edge.target], edge.tensor) for edge in self.graph.edges
        ]
        here = [device.id for device in self.placement]
        lives: Memory = []
        for op, node in enumerate(self.graph.ops):
            if op in start:
                local = [end[b] for a, b, _ in edges if a == op and here[b] == here[op] and b in end]
                gone = [end[sent.parts[0][0]] for sent in self.sent if sent.source == op and sent.parts[0][0] in end]
                lives.append((here[op], start[op], max([end[op], *local, *gone]), node.output_bytes))
                lives.append((here[op], start[op], end[op], node.workspace_bytes))
        for sent in self.sent:
            for (first, relay), (second, _) in pairwise(sent.parts):
                if first in start:
                    lives.append((relay, start[first], end.get(second, end[first]), sent.size))
            last = sent.parts[-1][0]
            if last in start:
                reads = [
                    end[b] for _, b, tensor in edges if tensor == sent.tensor and here[b] == sent.target and b in end
                ]
                lives.append((sent.target, start[last], max([end[last], *reads]), sent.size))
        return lives
