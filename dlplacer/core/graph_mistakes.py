"""Contradictions between nodes and edges, which values and files refuse in the same words.

Each is a place, as files name it, and the problem.
"""

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from dlplacer.core.op import Edge, Op

_CYCLE_SHOWN = 12


def reference_mistakes(noun: str, nodes: Iterable[Any], edges: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Ids given twice and edges that end nowhere."""
    known: set[str] = set()
    for position, node in enumerate(nodes):
        if node.id in known:
            yield f"nodes[{position}].id", f"{noun} {node.id!r} is given twice; rename one"
        known.add(node.id)
    for position, edge in enumerate(edges):
        if edge.source not in known or edge.target not in known:
            for end in ("source", "target"):
                if (name := getattr(edge, end)) not in known:
                    yield f"edges[{position}].{end}", f"{edge.label} names {noun} {name!r}, which is not there; add it"


def graph_mistakes(ops: Sequence[Op], edges: Sequence[Edge]) -> Iterator[tuple[str, str]]:
    """All but a cycle: wrong references, outputs that a source lacks, and edges of one tensor that disagree."""
    yield from reference_mistakes("op", ops, edges)
    output_count = {op.id: len(op.outputs) for op in ops}
    first: dict[str, Edge] = {}
    for position, edge in enumerate(edges):
        count = output_count.get(edge.source, 0)
        if 0 < count <= edge.output:
            yield (
                f"edges[{position}].output",
                f"edge {edge.source!r} → {edge.target!r} reads output {edge.output}; {edge.source!r} has {count} "
                f"{'output' if count == 1 else 'outputs'}, counted from 0",
            )
        other = first.setdefault(edge.tensor, edge)
        if other is not edge and (edge.bytes, edge.source, edge.output) != (other.bytes, other.source, other.output):
            yield (
                f"edges[{position}].tensor",
                f"tensor {edge.tensor!r}: the edge to {edge.target!r} says {edge.bytes} bytes of output {edge.output} "
                f"of {edge.source!r}, the edge to {other.target!r} says {other.bytes} bytes of output {other.output} "
                f"of {other.source!r}; edges of one tensor must agree",
            )


def cycle_mistake(edges: Iterable[Edge]) -> str | None:
    """A message that shows a cycle of the graph; None if there is none."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for edge in edges:
        sorter.add(edge.target, edge.source)
    try:
        sorter.prepare()
    except CycleError as error:
        shown = [repr(name) for name in error.args[1]]
        if len(shown) > _CYCLE_SHOWN:
            half = _CYCLE_SHOWN // 2
            shown[half:-half] = [f"({len(shown) - 2 * half} more)"]
        return f"the graph has a cycle: {' → '.join(shown)}; remove one of its edges"
    return None
