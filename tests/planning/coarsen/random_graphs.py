"""Random graphs of ops with everything that contraction must combine."""

import random

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import PHASES, Edge, Op, TensorSpec


def random_graph(seed: int, count: int = 12) -> OpGraph:
    """A graph whose ops have times on two types, footprints, groups, and one or two outputs each."""
    chooser = random.Random(seed)
    ops, edges = [], []
    for position in range(count):
        specs = tuple(TensorSpec((chooser.randrange(1, 9),), "float32", 4) for _ in range(chooser.choice((1, 2))))
        ops.append(
            Op(
                f"op{position}",
                "test",
                time_s={"fast": chooser.random(), "slow": chooser.random()},
                flops=chooser.choice((0, chooser.randrange(100))),
                bytes_accessed=chooser.randrange(100),
                dtype="float32",
                outputs=specs,
                weight_bytes=chooser.randrange(10),
                gradient_bytes=chooser.randrange(10),
                state_bytes=chooser.randrange(10),
                output_bytes=4 * len(specs),
                workspace_bytes=chooser.randrange(10),
                phase=PHASES[3 * position // count],
                module=chooser.choice((None, "a", "a.b", "a.c", "d")),
                colocate=chooser.choice((None, None, "g", "h", "i")),
            )
        )
        for source in range(position):
            if chooser.random() < 0.25:
                output = chooser.randrange(len(ops[source].outputs))
                edges.append(Edge(f"op{source}", f"op{position}", 4, output, f"t{source}.{output}"))
            elif chooser.random() < 0.05:
                edges.append(Edge(f"op{source}", f"op{position}", 0))
    return OpGraph(tuple(ops), tuple(edges))


def random_labels(graph: OpGraph, seed: int, labels: int = 3) -> dict[str, str]:
    """Labels for about two ops of three; one label never spans two phases."""
    chooser = random.Random(seed)
    return {op.id: f"{op.phase}{chooser.randrange(labels)}" for op in graph.ops if chooser.random() < 0.67}
