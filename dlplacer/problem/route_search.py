"""All routes between two devices that take at most some ticks: a proof may leave none of them out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from dlplacer.core.topology import Topology
from dlplacer.problem.routes import Route

_MOST_SEGMENTS = 32
"""Route segments between two devices that are told apart; more take dozens of routers side by side."""


def route_segments(topology: Topology) -> dict[str, list[Route]] | None:
    """Device → all route segments that begin there: simple paths to another device through routers only.

    None where two devices are joined by more than 32 of them.
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
        What `route_segments` returns.
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
