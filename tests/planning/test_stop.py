"""A request to stop is heard in every phase of a solve."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from threading import Event, Timer

import pytest

from dlplacer.core.errors import NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Topology
from dlplacer.files.load import load_topology
from dlplacer.planning.place import place

FOUR_GPUS = load_topology("dgx1-v100-4gpu")


def random_layers(count: int, seed: int) -> OpGraph:
    """Ops that read two of the eight before them."""
    random = Random(seed)
    ops = [Op(f"k{n}", "op", random.uniform(2e-6, 6e-5), weight_bytes=random.randrange(2**20)) for n in range(count)]
    pairs = {(random.randrange(max(0, n - 8), n), n) for n in range(4, count) for _ in range(2)}
    return OpGraph(tuple(ops), tuple(Edge(f"k{a}", f"k{b}", 2 ** random.randrange(8, 18)) for a, b in sorted(pairs)))


def equal_layers(count: int) -> OpGraph:
    """A norm read by eight rows of four products, whose ends are summed."""
    ops, edges = [Op("norm0", "norm", 1e-5)], []
    for layer in range(count):
        rows = [[f"norm{layer}", *(f"l{layer}.{row}.{n}" for n in range(4)), f"norm{layer + 1}"] for row in range(8)]
        ops += [Op(name, "mm", 1e-5) for row in rows for name in row[1:5]] + [Op(f"norm{layer + 1}", "norm", 1e-5)]
        edges += [Edge(a, b, 2**19) for row in rows for a, b in pairwise(row)]
    return OpGraph(tuple(ops), tuple(edges))


def tight(graph: OpGraph, topology: Topology) -> Topology:
    """Memories that hold 1.3 times the graph together."""
    each = int(1.3 * sum(op.footprint_bytes for op in graph.ops) / len(topology.devices))
    return replace(topology, devices=tuple(replace(device, memory_bytes=each) for device in topology.devices))


def issued(graph: OpGraph, topology: Topology) -> Topology:
    """One process that issues an op in 5 us."""
    devices = tuple(replace(device, dispatch_s=5e-6, process="python") for device in topology.devices)
    return replace(topology, devices=devices)


# What follows a search, the replay and the check of its plan, takes some tenths of a second here on a quiet machine.
@pytest.mark.slow
@pytest.mark.parametrize("graph", [random_layers(300, 1), equal_layers(30)], ids=["random", "equal"])
@pytest.mark.parametrize("machine", [lambda graph, box: box, tight, issued], ids=["roomy", "tight", "issued"])
@pytest.mark.parametrize("seed", range(3))
def test_a_stop_is_heard_soon(graph: OpGraph, machine: Callable[[OpGraph, Topology], Topology], seed: int) -> None:
    stop, after_s = Event(), Random(seed).uniform(0.0, 8.0)
    timer = Timer(after_s, stop.set)
    timer.start()
    began = time.monotonic()
    try:
        place(graph, machine(graph, FOUR_GPUS), time_limit_s=30.0, seed=seed, stop=stop)
    except NoPlanError:
        assert after_s < 1.0
    assert time.monotonic() - began < after_s + 3.0


def test_a_stop_ahead_of_the_search_leaves_it_at_once() -> None:
    stop = Event()
    stop.set()
    graph = random_layers(3000, 1)
    began = time.monotonic()
    with pytest.raises(NoPlanError):
        place(graph, FOUR_GPUS, stop=stop)
    assert time.monotonic() - began < 1.0
