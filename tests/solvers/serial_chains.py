"""Chains on unequal devices that barely hold them."""

from itertools import pairwise
from random import Random

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology

MIB = 2**20


def tight_chain(seed: int, layers: int, devices: int, slack: float, skips: int = 0) -> tuple[OpGraph, Topology]:
    """Layers of random sizes and times, some that are read again later, and memory for `slack` times the weights."""
    random = Random(seed)
    speeds = [random.uniform(1, 10) for _ in range(devices)]
    ops = tuple(
        Op(
            f"layer{number}",
            "op",
            {f"type{k}": random.randint(500, 5000) * 1e-6 / speed for k, speed in enumerate(speeds)},
            weight_bytes=random.randint(1, 64) * MIB,
        )
        for number in range(layers)
    )
    edges = [Edge(a.id, b.id, random.randint(1, 128) * MIB // 16) for a, b in pairwise(ops)]
    for _ in range(skips):
        first = random.randrange(layers - 2)
        last = random.randrange(first + 2, layers)
        edges.append(Edge(ops[first].id, ops[last].id, edges[first].bytes))
    need = slack * sum(op.weight_bytes for op in ops)
    shares = [random.uniform(0.5, 1.5) for _ in range(devices)]
    rooms = [int(need * share / sum(shares)) for share in shares]
    machines = tuple(Device(f"d{k}", f"type{k}", memory_bytes=room) for k, room in enumerate(rooms))
    links = tuple(
        Link(f"d{a}", f"d{b}", random.uniform(1e9, 1e10), 5e-6) for a in range(devices) for b in range(a + 1, devices)
    )
    return OpGraph(ops, tuple(edges)), Topology(machines, (), links)
