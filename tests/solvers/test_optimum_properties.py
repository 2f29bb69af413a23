"""What the proven optimum depends on, and what can only make it better."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from solvers.random_problems import random_problem

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Link, Topology
from dlplacer.planning.place import place

_SAME = 1e-9
_EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 10**6)
Item = TypeVar("Item")


def optimum_s(graph: OpGraph, topology: Topology) -> float | None:
    """The proven optimum; None if no plan exists."""
    try:
        result = place(graph, topology, Options.paper(), work_s=20)
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


@given(seeds)
@_EXAMPLES
def test_names_and_the_order_of_ops_edges_devices_and_links_do_not_matter(seed: int) -> None:
    graph, topology = random_problem(seed)
    random = Random(seed)
    fresh = [f"z{number}" for number in range(len(graph.ops))]
    name = dict(zip((op.id for op in graph.ops), shuffled(fresh, random), strict=True))
    ops = [replace(op, id=name[op.id]) for op in graph.ops]
    edges = [replace(edge, source=name[edge.source], target=name[edge.target]) for edge in graph.edges]
    other = OpGraph(shuffled(ops, random), shuffled(edges, random))
    nodes = (shuffled(part, random) for part in (topology.devices, topology.routers, topology.links))
    assert agree(optimum_s(other, Topology(*nodes)), optimum_s(graph, topology))


def faster_link(topology: Topology, random: Random) -> Topology:
    assume(topology.links)
    number, factor = random.randrange(len(topology.links)), random.randint(2, 5)
    link = topology.links[number]
    faster = replace(link, bytes_per_s=factor * link.bytes_per_s, latency_s=link.latency_s / factor)
    return replace(topology, links=(*topology.links[:number], faster, *topology.links[number + 1 :]))


def more_memory(topology: Topology, random: Random) -> Topology:
    sizes = [each.memory_bytes and each.memory_bytes + random.choice([0, 4]) for each in topology.devices]
    larger = (replace(each, memory_bytes=size) for each, size in zip(topology.devices, sizes, strict=True))
    return replace(topology, devices=tuple(larger))


def one_more_device(topology: Topology, random: Random) -> Topology:
    first = topology.devices[0]
    devices = (*topology.devices, replace(first, id="extra", memory_bytes=random.choice([None, 5])))
    links = (*topology.links, Link("extra", first.id, random.choice([1.0, 4.0]), 0.0))
    return Topology(devices, topology.routers, links)


@pytest.mark.parametrize("improved", [faster_link, more_memory, one_more_device])
@given(seeds)
@_EXAMPLES
def test_a_better_machine_never_hurts(improved: Callable[[Topology, Random], Topology], seed: int) -> None:
    graph, topology = random_problem(seed)
    assert no_worse(optimum_s(graph, improved(topology, Random(seed))), optimum_s(graph, topology))
