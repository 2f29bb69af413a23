"""Contiguous placements: the dynamic program against every cut and every sequence of devices."""

from itertools import combinations, pairwise, permutations
from random import Random

import pytest
from solvers.helpers import broken_rules, make_machine, make_problem

from dlplacer.core.constraints import Constraints
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place
from dlplacer.solvers.heuristics.contiguous import contiguous
from dlplacer.solvers.heuristics.list_rules import by_rank, upward_ranks
from dlplacer.solvers.instance.instance import build_instance


def random_chain(seed: int) -> tuple[OpGraph, Topology]:
    """Up to 7 layers of unequal sizes on up to 3 unequal devices that just hold them, or do not."""
    random = Random(seed)
    count, machines = random.randint(2, 7), random.randint(1, 3)
    ops = [
        Op(
            f"l{i}",
            "layer",
            {f"t{d}": random.randint(1, 9) for d in range(machines)},
            weight_bytes=random.randint(1, 4),
        )
        for i in range(count)
    ]
    edges = [Edge(f"l{i}", f"l{i + 1}", random.choice([0, 2, 5])) for i in range(count - 1)]
    room = sum(op.weight_bytes for op in ops)
    devices = tuple(
        Device(f"d{d}", f"t{d}", memory_bytes=random.randint(max(1, room // machines), room)) for d in range(machines)
    )
    pairs = combinations(range(machines), 2)
    links = tuple(Link(f"d{a}", f"d{b}", random.choice([1, 2]), random.choice([0, 3])) for a, b in pairs)
    return OpGraph(tuple(ops), tuple(edges)), Topology(devices, (), links)


def best_cut(graph: OpGraph, topology: Topology) -> float | None:
    """Least time over all contiguous placements, by enumeration; links join every pair of devices directly."""
    count, best = len(graph.ops), None
    for used in range(1, len(topology.devices) + 1):
        for order in permutations(topology.devices, used):
            for cuts in combinations(range(1, count), used - 1):
                runs = list(zip((0, *cuts), (*cuts, count), order, strict=True))
                if any(sum(op.weight_bytes for op in graph.ops[a:b]) > (d.memory_bytes or 0) for a, b, d in runs):
                    continue
                time_s = sum((op.time_on(d.type) or 0.0) for a, b, d in runs for op in graph.ops[a:b])
                for cut, (one, other) in zip(cuts, pairwise(order), strict=True):
                    link = topology.link_between[one.id, other.id]
                    time_s += graph.edges[cut - 1].bytes / link.bytes_per_s + link.latency_s
                best = time_s if best is None else min(best, time_s)
    return best


@pytest.mark.parametrize("chunk", range(3))
def test_chains_are_cut_where_it_is_best(chunk: int) -> None:
    impossible = 0
    for seed in range(chunk * 60, (chunk + 1) * 60):
        graph, topology = random_chain(seed)
        problem = make_problem(graph, topology)
        instance = build_instance(problem)
        found, expected = contiguous(instance, by_rank(instance, upward_ranks(instance))), best_cut(graph, topology)
        assert (found is None) == (expected is None), seed
        if found is not None and expected is not None:
            assert not broken_rules(instance, found)
            # relays may shorten what the enumeration takes for a direct transfer
            assert found.makespan * problem.tick_s <= expected, seed
        impossible += expected is None
    assert 0 < impossible < 30


# It looks at eight devices only: the one that an op is pinned to must be among them.
def test_a_pin_to_the_last_of_many_devices_is_kept() -> None:
    ops = tuple(Op(f"l{i}", "layer", 1.0) for i in range(6))
    edges = tuple(Edge(f"l{i}", f"l{i + 1}", 0) for i in range(5))
    graph = OpGraph(ops, edges, constraints=Constraints(pins={"l5": "d10"}))
    instance = build_instance(make_problem(graph, make_machine(11)))
    found = contiguous(instance, by_rank(instance, upward_ranks(instance)))
    assert found is not None
    assert found.device[5] == 10


def test_islands_do_not_pull_the_barrier_away() -> None:
    ops = (Op("f", "layer", 1.0, phase="forward", devices=("d2",)), Op("b", "layer", 1.0, phase="backward"))
    topology = Topology(tuple(Device(f"d{i}") for i in range(3)), (), ())
    plan = place(OpGraph(ops, (Edge("f", "b", 1),)), topology, method="contiguous").plan
    assert set(plan.placement.values()) == {"d2"}
