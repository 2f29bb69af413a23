"""Orders on devices and links: what descent finds keeps every rule and is never longer than what it began with."""

import time
from random import Random

import pytest
from solvers.helpers import broken_rules, broken_transfers, make_graph, make_machine
from solvers.local_search.contended import contended_instances

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import in_sequence
from dlplacer.solvers.local_search.critical_swaps import DisjunctiveGraph


def test_a_tensor_that_is_long_ready_goes_first() -> None:
    # The tensor of b is read first, so a list schedule sends it first, at 9 to 11, and that of a after it, at 11 to 21,
    # as ten ticks do not fit between 1 and 9. The other way round they travel at 1 to 11 and 11 to 13, s runs first.
    graph = make_graph({"a": 1.0, "b": 8.0, "r": 1.0, "s": 1.0}, [("b", "r", 2), ("a", "s", 10)])
    problem = build_problem(graph, make_machine(2), Options())
    instance, tick_s = build_instance(problem), float(problem.tick_s)
    listed = in_sequence(instance, [0, 0, 1, 1], range(4))
    assert listed.makespan * tick_s == pytest.approx(22)
    swapped = DisjunctiveGraph(instance, listed)
    assert swapped.descend(time.monotonic() + 10) * tick_s == pytest.approx(14)
    found = swapped.schedule()
    assert found.makespan == swapped.makespan
    assert broken_rules(instance, found) == broken_transfers(instance, found) == []


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
    assert better >= 5


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
    assert better >= 5


def test_what_travels_in_no_time_waits_for_its_link_too() -> None:
    # The tensor of a holds the link of d0 from 1 to 11, that of b needs it for a moment at 4: s starts at 11 and ends
    # at 31. The other way round r, which takes 15, ends at 29.
    ops = [Op(name, "x", ticks, devices=(where,)) for name, ticks, where in (("a", 1, "d0"), ("b", 3, "d0"))]
    ops += [Op(name, "x", ticks, devices=(where,)) for name, ticks, where in (("r", 15, "d1"), ("s", 20, "d2"))]
    edges = Edge("a", "r", 10), Edge("b", "s", 0), Edge("a", "b", 0)
    star_of_three = Topology(
        tuple(Device(f"d{number}") for number in range(3)),
        (Router("switch"),),
        tuple(Link(f"d{number}", "switch", 1) for number in range(3)),
    )
    instance = build_instance(build_problem(OpGraph(tuple(ops), edges), star_of_three, Options()))
    start = in_sequence(instance, [0, 0, 1, 2], range(4))
    swapped = DisjunctiveGraph(instance, start)
    assert (start.makespan, swapped.makespan) == (31, 31)
    assert swapped.descend(time.monotonic() + 10) == 29
    found = swapped.schedule()
    assert broken_rules(instance, found) == broken_transfers(instance, found) == []
