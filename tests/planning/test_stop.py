"""A request to stop is heard in every phase of a solve."""

import time
from random import Random
from threading import Event

import pytest

from dlplacer.core.errors import NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.files.load import load_topology
from dlplacer.planning.place import place

FOUR_GPUS = load_topology("dgx1-v100-4gpu")


def random_layers(count: int, seed: int) -> OpGraph:
    """Ops that read two of the eight before them."""
    random = Random(seed)
    ops = [Op(f"k{n}", "op", random.uniform(2e-6, 6e-5), weight_bytes=random.randrange(2**20)) for n in range(count)]
    pairs = {(random.randrange(max(0, n - 8), n), n) for n in range(4, count) for _ in range(2)}
    return OpGraph(tuple(ops), tuple(Edge(f"k{a}", f"k{b}", 2 ** random.randrange(8, 18)) for a, b in sorted(pairs)))


def test_a_stop_ahead_of_the_search_leaves_it_at_once() -> None:
    stop = Event()
    stop.set()
    graph = random_layers(3000, 1)
    began = time.monotonic()
    with pytest.raises(NoPlanError):
        place(graph, FOUR_GPUS, stop=stop)
    assert time.monotonic() - began < 1.0
