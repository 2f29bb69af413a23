"""Small graphs to cut: training graphs by hand and at random, and a brute-force split."""

import itertools
import random
from collections.abc import Sequence

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.pipeline.blocks import Blocks


def chain(times_s: Sequence[float], bytes_: int = 8, backward: float = 2.0) -> OpGraph:
    """Ops one after another, each with a weight of 10 bytes and a backward op of `backward` times its time."""
    return dag(times_s, [(at, at + 1) for at in range(len(times_s) - 1)], [bytes_] * len(times_s), backward)


def dag(
    times_s: Sequence[float], pairs: Sequence[tuple[int, int]], sizes: Sequence[int], backward: float = 2.0
) -> OpGraph:
    """Forward ops ``f0`` … with edges, and their backward ops, which read what the forward op read."""
    ops, edges = [], []
    for at, time_s in enumerate(times_s):
        ops.append(Op(f"w{at}", "parameter", 0.0, weight_bytes=10, gradient_bytes=10, phase="forward"))
        ops.append(Op(f"f{at}", "matmul", time_s, phase="forward", colocate=f"g{at}"))
        edges.append(Edge(f"w{at}", f"f{at}", 10))
    for source, target in pairs:
        edges.append(Edge(f"f{source}", f"f{target}", sizes[source], tensor=f"f{source}"))
    if backward:
        for at in reversed(range(len(times_s))):
            ops.append(Op(f"b{at}", "matmul_backward", backward * times_s[at], phase="backward", colocate=f"g{at}"))
        for source, target in pairs:
            edges.append(Edge(f"b{target}", f"b{source}", sizes[source]))
            edges.append(Edge(f"f{source}", f"b{target}", sizes[source], tensor=f"f{source}"))
    return OpGraph(tuple(ops), tuple(edges), name="small")


def random_dag(seed: int, count: int) -> OpGraph:
    """Up to 7 ops in a random order of dependencies, with times and sizes that are small whole numbers."""
    draw = random.Random(seed)
    pairs = [(a, b) for b in range(1, count) for a in range(b) if draw.random() < 0.45]
    return dag([draw.randint(1, 9) for _ in range(count)], pairs, [draw.randint(1, 60) for _ in range(count)])


def devices(types: Sequence[str], rate: float = 10.0, memory_bytes: int | None = None) -> Topology:
    """Devices in a row of links: d0 – d1 – d2."""
    nodes = tuple(Device(f"d{at}", kind, memory_bytes) for at, kind in enumerate(types))
    links = tuple(Link(f"d{at}", f"d{at + 1}", rate, 0.5) for at in range(len(types) - 1))
    return Topology(nodes, (), links, name="row")


def all_splits(blocks: Blocks, stages: int) -> list[list[int]]:
    """[block] → stage, for every choice of cuts into so many stages, none empty, data flowing forward alone."""
    found = []
    for choice in itertools.product(range(stages), repeat=len(blocks.members)):
        forward = all(choice[other] <= choice[at] for at, before in enumerate(blocks.before) for other in before)
        if forward and set(choice) == set(range(stages)):
            found.append(list(choice))
    return found
