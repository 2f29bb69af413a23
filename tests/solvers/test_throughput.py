"""Objective throughput against a brute force over placements, and examples by hand."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from random import Random

import pytest
from solvers.brute_force import placements
from solvers.brute_force_options import cut_at_devices, routes_between, seconds_on, segment_of

from dlplacer.check import resource_loads
from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.planning.place import place

STEADY = Options(objective="throughput", memory="sum")


def _random_problem(seed: int) -> tuple[OpGraph, Topology, Options]:
    """Up to five ops on three devices, whose routes of least delay are unique."""
    random = Random(seed)
    devices = tuple(
        Device(
            f"d{i}",
            random.choice("aab") if i else "a",
            random.choice([None, 6, 9]),
            asynchronous=random.random() < 0.8,
        )
        for i in range(3)
    )
    shape = random.choice([("d0 d1", "d1 d2"), ("d0 r", "d1 r", "d2 r"), ("d0 d1", "d1 d2", "d0 d2"), ("d0 d1",)])
    links = tuple(
        Link(*pair.split(), random.choice([1, 2, 4]), 2.0**-number, random.choice(["full", "full", "half"]))
        for number, pair in enumerate(shape)
    )
    ops = tuple(
        Op(
            f"k{i}",
            "test",
            {"a": random.choice([0, 1, 2, 5]), "b": random.choice([1, 3])},
            weight_bytes=random.choice([0, 1, 3]),
            devices=random.choice([None, None, None, ("a",), ("d1", "d2")]),
            colocate=random.choice([None, None, "g"]),
        )
        for i in range(5)
    )
    size = [random.choice([0, 1, 2, 4]) for _ in ops]
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5) if random.random() < 0.5]
    edges = tuple(Edge(f"k{i}", f"k{j}", size[i], tensor=f"t{i}") for i, j in pairs)
    options = Options(
        objective=random.choice(["throughput", "max-load"]),
        memory="sum",
        contention=random.choice(["link", "link", "none"]),
        transfers=random.choice(["device", "edge"]),
        delay=random.choice(["cut-through", "store-and-forward"]),
    )
    return OpGraph(ops, edges), Topology(devices, (Router("r"),) if "r" in shape[0] else (), links), options


def _period(graph: OpGraph, topology: Topology, options: Options, placement: Sequence[Device]) -> Fraction | float:
    where = dict(zip((op.id for op in graph.ops), placement, strict=True))
    busy: dict[object, Fraction] = defaultdict(Fraction)
    for op in graph.ops:
        busy[where[op.id].id] += seconds_on(op, where[op.id])
    sent: dict[tuple[str, object], Fraction] = {}
    done = set()
    for number, edge in enumerate(graph.edges):
        a, b = where[edge.source].id, where[edge.target].id
        transfer = (edge.tensor, b) if options.transfers == "device" else number
        if a == b or transfer in done:
            continue
        done.add(transfer)
        routes = routes_between(topology, replace(options, routing="shortest"), a, b, edge.bytes)
        if not routes:
            return inf
        parts = [segment_of(topology, options, part, edge.bytes, 0) for part in cut_at_devices(topology, routes[0])]
        for resource, _, time_s in (hold for part in parts for hold in part.holds):
            busy[resource] += time_s
        if options.objective == "max-load":
            delay = sum((part.time_s for part in parts), Fraction(0))
            busy[b] += delay if where[edge.target].asynchronous else 0
            key = a, edge.tensor if options.transfers == "device" else number
            sent[key] = max(delay, sent.get(key, Fraction(0)))
    hosts = {device.id for device in topology.devices if not device.asynchronous}
    for (device, _), delay in sent.items():
        busy[device] += 0 if device in hosts else delay
    return max(busy.values())


@pytest.mark.parametrize("seed", range(16))
def test_the_period_is_the_least_of_all_placements(seed: int) -> None:
    graph, topology, options = _random_problem(seed)
    periods = [_period(graph, topology, options, where) for where in placements(graph, topology)]
    best = min(periods, default=inf)
    if best == inf:
        with pytest.raises(InfeasibleError):
            place(graph, topology, options, time_limit_s=20, workers=1)
        return
    plan = place(graph, topology, options, time_limit_s=20, workers=1).plan
    assert plan.period_s == pytest.approx(float(best), rel=1e-9)
    assert plan.status == "optimal"


def test_a_pipeline_of_equal_ops_has_half_the_period_of_one_device() -> None:
    graph = OpGraph([Op(name, "mm", 1.0) for name in "abcd"], [Edge("a", "b", 1), Edge("b", "c", 1), Edge("c", "d", 1)])
    machine = Topology((Device("d0"), Device("d1")), links=(Link("d0", "d1", 2.0),))
    result = place(graph, machine, STEADY, time_limit_s=5)
    assert result.plan.period_s == 2.0
    assert result.speedup == 2.0
    # The step itself is no shorter: its ops follow one another.
    assert result.plan.makespan_s >= 4.0


def test_the_max_load_counts_transfers_at_both_devices() -> None:
    graph = OpGraph([Op("a", "mm", 4.0), Op("b", "mm", 4.0)], [Edge("a", "b", 2)])
    machine = Topology((Device("d0"), Device("d1")), links=(Link("d0", "d1", 2.0),))
    plan = place(graph, machine, Options(objective="max-load"), time_limit_s=5).plan
    # Each computes for 4 s; 2 bytes at 2 bytes per second keep both for another second.
    assert plan.period_s == 5.0
    loads = resource_loads(plan)
    assert sorted(loads.values()) == [0.0, 1.0, 5.0, 5.0]


def test_memory_over_time_holds_for_a_step_of_the_plan() -> None:
    graph = OpGraph(
        [Op(f"k{i}", "mm", 1.0, weight_bytes=2, output_bytes=4) for i in range(6)],
        [Edge(f"k{i}", f"k{i + 1}", 4) for i in range(5)],
    )
    machine = Topology((Device("d0", memory_bytes=15), Device("d1", memory_bytes=15)), links=(Link("d0", "d1", 8.0),))
    plan = place(graph, machine, Options(objective="throughput"), time_limit_s=10).plan
    assert plan.period_s == 3.0
    assert all(use.peak_bytes <= 15 for use in plan.memory.values())


def test_methods_that_know_the_makespan_alone_are_refused() -> None:
    graph, machine = OpGraph([Op("a", "mm", 1.0)]), Topology((Device("d0"),))
    with pytest.raises(InputError):
        place(graph, machine, STEADY, method="heft")
