"""What the proven optimum depends on, and what can only make it better."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from solvers.random_problems import random_problem

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place

_SAME = 1e-9
_EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 10**6)
Item = TypeVar("Item")


def optimum_s(graph: OpGraph, topology: Topology) -> float | None:
    """The proven optimum; None if no plan exists."""
    try:
        result = place(graph, topology, Options.paper(), workers=1)
    except InfeasibleError:
        return None
    assert result.status == "optimal"
    return result.plan.makespan_s


def agree(first: float | None, second: float | None) -> bool:
    """Whether two optima are the same but for the rounding of sums."""
    if first is None or second is None:
        return first is second
    return abs(first - second) <= _SAME * max(1.0, first)


def no_worse(new: float | None, old: float | None) -> bool:
    """Whether what got more room found a plan at least as good."""
    return old is None or (new is not None and new <= old + _SAME * max(1.0, old))


def shuffled(items: Sequence[Item], random: Random) -> tuple[Item, ...]:
    return tuple(random.sample(items, len(items)))


def with_devices(topology: Topology, devices: tuple[Device, ...]) -> Topology:
    return Topology(devices, topology.routers, topology.links)


def with_links(topology: Topology, links: tuple[Link, ...]) -> Topology:
    return Topology(topology.devices, topology.routers, links)


@given(seeds)
@_EXAMPLES
def test_names_of_ops_do_not_matter(seed: int) -> None:
    graph, topology = random_problem(seed)
    fresh = [f"z{number}" for number in range(len(graph.ops))]
    name = dict(zip((op.id for op in graph.ops), shuffled(fresh, Random(seed)), strict=True))
    ops = tuple(replace(op, id=name[op.id]) for op in graph.ops)
    edges = tuple(replace(edge, source=name[edge.source], target=name[edge.target]) for edge in graph.edges)
    assert agree(optimum_s(OpGraph(ops, edges), topology), optimum_s(graph, topology))


@given(seeds)
@_EXAMPLES
def test_the_order_of_ops_and_edges_does_not_matter(seed: int) -> None:
    graph, topology = random_problem(seed)
    random = Random(seed)
    other = OpGraph(shuffled(graph.ops, random), shuffled(graph.edges, random))
    assert agree(optimum_s(other, topology), optimum_s(graph, topology))


@given(seeds)
@_EXAMPLES
def test_the_order_of_devices_and_links_does_not_matter(seed: int) -> None:
    graph, topology = random_problem(seed)
    random = Random(seed)
    other = Topology(
        shuffled(topology.devices, random), shuffled(topology.routers, random), shuffled(topology.links, random)
    )
    assert agree(optimum_s(graph, other), optimum_s(graph, topology))


@given(seeds, st.integers(2, 5))
@_EXAMPLES
def test_faster_links_never_hurt(seed: int, factor: int) -> None:
    graph, topology = random_problem(seed)
    assume(topology.links)
    number = Random(seed).randrange(len(topology.links))
    link = topology.links[number]
    faster = replace(link, bytes_per_s=factor * link.bytes_per_s, latency_s=link.latency_s / factor)
    other = with_links(topology, (*topology.links[:number], faster, *topology.links[number + 1 :]))
    assert no_worse(optimum_s(graph, other), optimum_s(graph, topology))


@given(seeds)
@_EXAMPLES
def test_more_memory_never_hurts(seed: int) -> None:
    graph, topology = random_problem(seed)
    random = Random(seed)
    larger = tuple(
        device
        if device.memory_bytes is None
        else replace(device, memory_bytes=device.memory_bytes + random.choice([0, 4]))
        for device in topology.devices
    )
    assert no_worse(optimum_s(graph, with_devices(topology, larger)), optimum_s(graph, topology))


@given(seeds)
@_EXAMPLES
def test_one_more_device_never_hurts(seed: int) -> None:
    graph, topology = random_problem(seed)
    random = Random(seed)
    first = topology.devices[0]
    devices = (*topology.devices, replace(first, id="extra", memory_bytes=random.choice([None, 5])))
    links = (*topology.links, Link("extra", first.id, random.choice([1.0, 4.0]), 0.0))
    other = Topology(devices, topology.routers, links)
    assert no_worse(optimum_s(graph, other), optimum_s(graph, topology))
