"""Objective throughput against a brute force over placements, and examples by hand."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, product
from math import inf
from random import Random

import networkx as nx
import pytest

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


def _delay(topology: Topology, options: Options, path: list[str], size: int) -> list[tuple[tuple[str, str], float]]:
    """The links of a path, each with the time for which it is held; the last entry is the delay of all."""
    network = {frozenset((link.source, link.target)): link for link in topology.links}
    held, total = [], 0.0
    segment: list[tuple[str, str]] = []
    for hop in pairwise(path):
        segment.append(hop)
        if hop[1] == "r":
            continue
        links = [network[frozenset(each)] for each in segment]
        each_s = [size / link.bytes_per_s + link.latency_s for link in links]
        if options.delay == "cut-through":
            whole = size / min(link.bytes_per_s for link in links) + sum(link.latency_s for link in links)
            total, each_s = total + whole, [whole] * len(links)
        else:
            total += sum(each_s)
        for each, link, time_s in zip(segment, links, each_s, strict=True):
            held.append((each if link.duplex == "full" else (link.source, link.target), time_s))
        segment = []
    return [*held, (("", ""), total)]


def _placements(graph: OpGraph, topology: Topology) -> Iterator[dict[str, Device]]:
    for chosen in product(topology.devices, repeat=len(graph.ops)):
        where = dict(zip((op.id for op in graph.ops), chosen, strict=True))
        together = {where[op.id].id for op in graph.ops if op.colocate}
        allowed = all(op.devices is None or {where[op.id].id, where[op.id].type} & set(op.devices) for op in graph.ops)
        used: dict[str, int] = defaultdict(int)
        for op in graph.ops:
            used[where[op.id].id] += op.weight_bytes
        fits = all(each.memory_bytes is None or used[each.id] <= each.memory_bytes for each in topology.devices)
        if len(together) <= 1 and allowed and fits:
            yield where


def _period(graph: OpGraph, topology: Topology, options: Options, where: dict[str, Device]) -> float:
    network = nx.Graph((link.source, link.target) for link in topology.links)
    busy: dict[object, float] = defaultdict(float)
    for op in graph.ops:
        assert isinstance(op.time_s, dict)
        busy[where[op.id].id] += op.time_s[where[op.id].type]
    sent: dict[tuple[str, object], float] = {}
    done = set()
    for number, edge in enumerate(graph.edges):
        a, b = where[edge.source].id, where[edge.target].id
        transfer = (edge.tensor, b) if options.transfers == "device" else number
        if a == b or transfer in done:
            continue
        done.add(transfer)
        if a not in network or b not in network or not nx.has_path(network, a, b):
            return inf
        routes = (_delay(topology, options, path, edge.bytes) for path in nx.all_simple_paths(network, a, b))
        *held, (_, delay) = min(routes, key=lambda route: route[-1][1])
        if options.contention == "link":
            for direction, time_s in held:
                busy[direction] += time_s
        if options.objective == "max-load":
            busy[b] += delay if where[edge.target].asynchronous else 0
            key = a, edge.tensor if options.transfers == "device" else number
            sent[key] = max(delay, sent.get(key, 0.0))
    hosts = {device.id for device in topology.devices if not device.asynchronous}
    for (device, _), delay in sent.items():
        busy[device] += 0 if device in hosts else delay
    return max(busy.values())


@pytest.mark.parametrize("seed", range(16))
def test_the_period_is_the_least_of_all_placements(seed: int) -> None:
    graph, topology, options = _random_problem(seed)
    periods = [_period(graph, topology, options, where) for where in _placements(graph, topology)]
    best = min(periods, default=inf)
    if best == inf:
        with pytest.raises(InfeasibleError):
            place(graph, topology, options, time_limit_s=20, workers=1)
        return
    plan = place(graph, topology, options, time_limit_s=20, workers=1).plan
    assert plan.period_s == pytest.approx(best, rel=1e-9)
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
