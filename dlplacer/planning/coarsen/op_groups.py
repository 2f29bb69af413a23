"""Sets of ops that can become one op each, so that no ops wait for each other in a circle."""

from collections.abc import Mapping
from typing import TypeAlias

import networkx as nx

from dlplacer.core.graph import OpGraph

Node: TypeAlias = tuple[str, str, int]
"""An op of the contracted graph: ("group", label, 0), ("group", label, depth + 1) for a piece, or ("op", id, 0)."""


def acyclic_groups(graph: OpGraph, label_of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Label → its ops in topological order, for every label with two ops or more.

    Of the groups in a circle the one that spans the most depth is cut into pieces by depth, until no circle is left;
    the first piece keeps the label, later ones get ``#2``, ``#3``, …. The depth of an op grows along edges between
    groups and never falls along edges within one, so pieces of different depth cannot wait for each other.

    Parameters
    ----------
    label_of
        Op → label; an op without one stays alone.
    """
    whole = {op.id: ("group", label_of[op.id], 0) if op.id in label_of else ("op", op.id, 0) for op in graph.ops}
    depth = _depths(graph, whole)
    node_of = dict(whole)
    while widest := _widest_in_circles(graph, node_of, depth):
        node_of = {name: (*node[:2], depth[name] + 1) if node in widest else node for name, node in node_of.items()}
    pieces: dict[str, dict[Node, list[str]]] = {}
    for op_id in graph.topological_order:
        if op_id in label_of:
            pieces.setdefault(label_of[op_id], {}).setdefault(node_of[op_id], []).append(op_id)
    found: dict[str, tuple[str, ...]] = {}
    for label, by_node in pieces.items():
        several = (members for _, members in sorted(by_node.items()) if len(members) > 1)
        for number, members in enumerate(several, start=1):
            found[label if number == 1 else f"{label}#{number}"] = tuple(members)
    return found


def _widest_in_circles(graph: OpGraph, node_of: Mapping[str, Node], depth: Mapping[str, int]) -> set[Node]:
    """Of every set of nodes that wait for each other, the one whose ops span the most depth."""
    quotient = nx.DiGraph()
    ends = ((node_of[edge.source], node_of[edge.target]) for edge in graph.edges)
    quotient.add_edges_from((source, target) for source, target in ends if source != target)
    circles = [part for part in nx.strongly_connected_components(quotient) if len(part) > 1]
    depths: dict[Node, list[int]] = {node: [] for part in circles for node in part}
    for name, node in node_of.items():
        if node in depths:
            depths[node].append(depth[name])
    return {max(part, key=lambda node: (max(depths[node]) - min(depths[node]), node)) for part in circles}


def _depths(graph: OpGraph, node_of: Mapping[str, Node]) -> dict[str, int]:
    """Op → the most edges between groups on any path to it; one that reads nothing goes as deep as its readers let."""
    depth: dict[str, int] = {}
    for op_id in graph.topological_order:
        read = graph.edges_into[op_id]
        depth[op_id] = max((depth[edge.source] + _crosses(node_of, edge.source, op_id) for edge in read), default=0)
    # A weight is at depth 0 by its own reads; beside its reader it spans no depth, and its group is not cut for it.
    for op in graph.ops:
        readers = graph.edges_from[op.id]
        if readers and not graph.edges_into[op.id]:
            depth[op.id] = min(depth[edge.target] - _crosses(node_of, op.id, edge.target) for edge in readers)
    return depth


def _crosses(node_of: Mapping[str, Node], source: str, target: str) -> bool:
    return node_of[source] != node_of[target]
