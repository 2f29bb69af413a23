"""Orders on devices and links: what descent finds keeps every rule and is never longer than what it began with."""

import time
from random import Random

from solvers.helpers import broken_rules, broken_transfers
from solvers.local_search.contended import contended_instances

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.local_search.critical_swaps import DisjunctiveGraph


def test_what_is_found_keeps_every_rule() -> None:
    better = 0
    for seed, instance, start in contended_instances():
        graph = DisjunctiveGraph(instance, start)
        assert graph.makespan <= start.makespan, seed
        least = graph.makespan
        graph.descend(time.monotonic() + 10)
        found = graph.schedule()
        assert broken_rules(instance, found) == broken_transfers(instance, found) == [], seed
        assert found.makespan == graph.makespan <= least, seed
        assert (found.device, len(found.transfers)) == (start.device, len(start.transfers)), seed
        better += found.makespan < least
    assert better >= 1


def _half_duplex_star(devices: int) -> Topology:
    names = [f"d{number}" for number in range(devices)]
    links = tuple(Link(name, "switch", 1, duplex="half") for name in names)
    return Topology(tuple(Device(name) for name in names), (Router("switch"),), links)


def test_what_is_found_where_transfers_cross() -> None:
    better = 0
    for seed in range(30):
        random = Random(seed)
        ops = tuple(Op(f"o{number}", "x", random.randint(0, 4)) for number in range(25))
        edges = tuple(
            Edge(f"o{source}", f"o{number}", random.randint(0, 3))
            for number in range(25)
            for source in sorted(random.sample(range(number), min(number, 2)))
        )
        options = Options(delay="store-and-forward")
        instance = build_instance(build_problem(OpGraph(ops, edges), _half_duplex_star(3), options))
        start = list_schedule(instance, instance.order)
        assert start is not None
        graph = DisjunctiveGraph(instance, start)
        assert graph.makespan <= start.makespan, seed
        least = graph.makespan
        graph.descend(time.monotonic() + 10)
        found = graph.schedule()
        assert broken_rules(instance, found) == broken_transfers(instance, found) == [], seed
        assert found.makespan == graph.makespan <= least, seed
        better += found.makespan < start.makespan
    assert better >= 1
