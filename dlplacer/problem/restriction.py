"""The same problem on some of the devices, in the same ticks.

A plan of it is one of the problem itself. Makespans can be compared, as ticks are the same.
"""

from collections.abc import Sequence
from dataclasses import replace

from dlplacer.core.topology import Topology
from dlplacer.problem.problem import Problem
from dlplacer.problem.routes import Matrix, RoutesByPair, least_delay_routes, lines_of, matrices


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
