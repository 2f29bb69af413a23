"""Random graphs and orders for the lowering of plans."""

import random
from collections.abc import Sequence

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op

DEVICES = ("d0", "d 1", 'd"2')
"""Names of devices, two of which need quotes in a program's text."""


def random_graph(seed: int, most: int = 12) -> OpGraph:
    """A graph whose tensors are read by several ops, some of them twice, with edges that only carry an order.

    The first ops are forward, the rest backward.
    """
    chooser = random.Random(seed)
    count = chooser.randint(1, most)
    border = chooser.randint(0, count)
    ops = [
        Op(f"op {i}", "test", phase="forward" if i < border else "backward", colocate=chooser.choice([None, None, "a"]))
        for i in range(count)
    ]
    edges: dict[tuple[str, str, str], Edge] = {}
    for i, source in enumerate(ops):
        sizes = {
            f"{source.id}/{output}": (output, chooser.choice([0, 8, 64])) for output in range(chooser.randint(0, 2))
        }
        for target in ops[i + 1 :]:
            for tensor, (output, size) in sizes.items():
                if chooser.random() < 0.3:
                    edges[source.id, target.id, tensor] = Edge(source.id, target.id, size, output, tensor)
            if chooser.random() < 0.05:
                edges[source.id, target.id, ""] = Edge(source.id, target.id, 0)
    return OpGraph(tuple(ops), tuple(edges.values()))


def random_order(graph: OpGraph, seed: int, devices: Sequence[str] = DEVICES) -> dict[str, list[str]]:
    """A random placement, and on every device the order of one random run of the graph."""
    chooser = random.Random(seed)
    waits = {op.id: len(graph.edges_into[op.id]) for op in graph.ops}
    order: dict[str, list[str]] = {device: [] for device in devices}
    ready = [name for name, count in waits.items() if not count]
    while ready:
        name = ready.pop(chooser.randrange(len(ready)))
        order[chooser.choice(devices)].append(name)
        for edge in graph.edges_from[name]:
            waits[edge.target] -= 1
            if not waits[edge.target]:
                ready.append(edge.target)
    return order
