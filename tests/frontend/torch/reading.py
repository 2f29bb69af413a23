"""Short calls that read a captured graph."""

from collections import Counter

from dlplacer.core.graph import OpGraph


def readers(graph: OpGraph, op: str) -> set[str]:
    """Ids of the ops that read an op's results."""
    return {edge.target for edge in graph.edges_from[op]}


def kinds(graph: OpGraph) -> Counter[str]:
    """Kind → number of ops."""
    return Counter(op.kind for op in graph.ops)


def of_kind(graph: OpGraph, kind: str) -> list[str]:
    """Ids of the ops of one kind."""
    return [op.id for op in graph.ops if op.kind == kind]


def sizes_into(graph: OpGraph, op: str) -> dict[str, int]:
    """Op that is read → bytes of the edge."""
    return {edge.source: edge.bytes for edge in graph.edges_into[op]}
