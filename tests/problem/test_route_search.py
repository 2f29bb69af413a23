"""All routes within a limit, against an enumeration of simple paths."""

from itertools import pairwise
from random import Random

import networkx as nx
import pytest
from solvers.random_problems import random_everything

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.problem.route_table import TimedRoute, build_traffic, route_segments
from dlplacer.problem.routes import route_delay


def _nodes(route: TimedRoute) -> tuple[str, ...]:
    hops = [hop for segment in route for hop in segment.hops]
    return (hops[0][0], *(hop[1] for hop in hops))


@pytest.mark.parametrize("seed", range(6))
def test_within_lists_exactly_the_simple_paths_that_are_quick_enough(seed: int) -> None:
    random = Random(seed)
    graph, topology, options = random_everything(seed)
    if not graph.edges:
        return
    problem = build_problem(graph, topology, options)
    table = build_traffic(problem).routes
    network = nx.Graph([(link.source, link.target) for link in topology.links])
    for size, size_bytes in enumerate(problem.sizes_bytes):
        source, target = random.sample(range(len(topology.devices)), 2)
        ends = topology.devices[source].id, topology.devices[target].id
        delay = {
            tuple(path): route_delay(topology, tuple(path), size_bytes, options.delay)
            for path in nx.all_simple_paths(network, *ends)
        }
        most_s = random.choice(sorted(delay.values()))
        listed = table.within(size, source, target, int(most_s / problem.tick_s), 10**6)
        assert listed is not None
        if options.routing == "shortest":
            most_s = min(delay.values())
        assert {_nodes(route) for route in listed} == {path for path, spent in delay.items() if spent <= most_s}
        assert table.within(size, source, target, int(most_s / problem.tick_s), len(listed) - 1) is None
        assert sum(segment.ticks for segment in listed[0]) == int(min(delay.values()) / problem.tick_s)


def test_segments_pass_routers_only_and_too_many_are_told() -> None:
    devices = (Device("x"), Device("y"), Device("z"))
    routers = tuple(Router(f"r{i}") for i in range(33))
    few = Topology(devices, routers[:1], (Link("x", "r0", 1), Link("r0", "y", 1), Link("y", "z", 1)))
    found = route_segments(few)
    assert found is not None
    assert found["x"] == [("x", "r0", "y")]
    assert all(set(path[1:-1]) <= {"r0"} for paths in found.values() for path in paths)
    links = [Link(a, b, 1) for router in routers for a, b in pairwise(("x", router.id, "y"))]
    assert route_segments(Topology(devices, routers, (*links, Link("y", "z", 1)))) is None
