"""The same problem with less freedom: on some of the devices, or under stricter options, in the same ticks.

A plan of the restricted problem is one of the problem itself. Makespans can be compared, as ticks are the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.problem.delays import Matrix, lines_of, matrices
from dlplacer.problem.live_memory import may_bind
from dlplacer.problem.problem import Problem
from dlplacer.problem.routes import RoutesByPair, least_delay_routes

_STRICTER: Mapping[str, tuple[str, str]] = {
    "contention": ("none", "link"),
    "step": ("joint", "autograd"),
    "memory": ("live", "sum"),
    "routing": ("free", "shortest"),
    "transfers": ("device", "edge"),
}
"""Option → the looser and the stricter value: what is allowed under the stricter one ends no later under the looser.

``memory: sum`` does not count copies, so a plan under it may break ``live``; ``delay`` has no order where links are
contended, as a transfer through routers then holds more links or the same for longer.
"""


def on_devices(problem: Problem, devices: Sequence[int]) -> Problem | None:
    """The problem on some of the devices with the routers and links between them.

    None if an op may run on none of them, or if ``routing: shortest`` asks for a route over one that is left out.

    Parameters
    ----------
    devices
        Positions, ascending; device d of the result is device ``devices[d]`` of the problem.
    """
    durations = tuple(tuple(row[device] for device in devices) for row in problem.duration)
    if any(all(ticks is None for ticks in row) for row in durations):
        return None
    topology = _part(problem.topology, devices)
    routes = _kept_routes(problem, topology)
    if routes is None:
        if problem.options.routing == "shortest":
            return None
        found = least_delay_routes(topology, problem.sizes_bytes, problem.options.delay)
        routes = tuple(found[size] for size in problem.sizes_bytes)
    return replace(
        problem,
        topology=topology,
        duration=durations,
        delay=_delays(problem, topology, routes),
        routes=routes,
        capacity_bytes=tuple(problem.capacity_bytes[device] for device in devices),
    )


def stricter_options(problem: Problem) -> Iterator[Options]:
    """The options of the problem with one of them stricter, as far as that makes a difference."""
    options, contended = problem.options, problem.options.contention == "link"
    matters = {
        "contention": len(problem.topology.devices) > 1,
        "step": any(op.phase in ("backward", "optimizer") for op in problem.graph.ops),
        "memory": may_bind(problem),
        "routing": contended and len(problem.topology.devices) > 2,
        "transfers": contended and len({edge.tensor for edge in problem.graph.edges}) < len(problem.graph.edges),
    }
    for name, (looser, stricter) in _STRICTER.items():
        if matters[name] and getattr(options, name) == looser:
            yield replace(options, **{name: stricter})


def under(problem: Problem, options: Options) -> Problem:
    """The problem under stricter options of the same ``delay``."""
    footprint = problem.resident_bytes
    if options.memory == "sum":
        footprint = tuple(op.footprint_bytes for op in problem.graph.ops)
    return replace(problem, options=options, footprint_bytes=footprint)


def _part(topology: Topology, devices: Sequence[int]) -> Topology:
    kept = tuple(topology.devices[device] for device in devices)
    names = {device.id for device in kept} | {router.id for router in topology.routers}
    links = tuple(link for link in topology.links if link.source in names and link.target in names)
    return replace(topology, devices=kept, links=links)


def _kept_routes(problem: Problem, part: Topology) -> tuple[RoutesByPair, ...] | None:
    """[size] → the problem's routes among the devices that are left; None if one that is not relays."""
    names = {device.id for device in part.devices} | {router.id for router in part.routers}
    known: dict[int, RoutesByPair] = {}
    for table in problem.routes:
        if id(table) not in known:
            kept = {pair: route for pair, route in table.items() if names.issuperset(pair)}
            if not all(names.issuperset(route) for route in kept.values()):
                return None
            known[id(table)] = kept
    return tuple(known[id(table)] for table in problem.routes)


def _delays(problem: Problem, part: Topology, routes: tuple[RoutesByPair, ...]) -> tuple[Matrix, ...]:
    lines = lines_of(part, routes, problem.options.delay)
    seconds = [line.seconds(size) for line, size in zip(lines, problem.sizes_bytes, strict=True)]
    return matrices(lines, seconds, problem.tick_s)
