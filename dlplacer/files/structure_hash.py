"""The structure of a graph: everything but costs, as a hash and as a comparison."""

import hashlib
import json
from typing import Any

from dlplacer.core.graph import OpGraph
from dlplacer.files.graph_file import graph_to_dict

_COSTS = ("time_s", "flops", "bytes_accessed", "workspace_bytes", "meta")


def structure_sha256(graph: OpGraph) -> str:
    """SHA-256 over the ops and edges without times, FLOPs, bytes accessed, workspace and free-form notes."""
    value = graph_to_dict(graph)
    nodes = [_without_costs(node) for node in value["nodes"]]
    edges = [{key: field for key, field in edge.items() if key != "meta"} for edge in value["edges"]]
    return hashlib.sha256(json.dumps([nodes, edges], sort_keys=True).encode()).hexdigest()


def first_difference(ours: OpGraph, theirs: OpGraph) -> str | None:
    """The first difference between the structures of two graphs, naming the op; None if there is none."""
    for one, other, place in ((ours, theirs, "first"), (theirs, ours, "second")):
        for op in one.ops:
            if op.id not in other.index:
                return f"op {op.id!r} ({op.kind}) is only in the {place}"
    our_nodes = {node["id"]: node for node in graph_to_dict(ours)["nodes"]}
    for node in graph_to_dict(theirs)["nodes"]:
        mine, yours = _without_costs(our_nodes[node["id"]]), _without_costs(node)
        for field in sorted(mine.keys() | yours.keys()):
            if mine.get(field) != yours.get(field):
                return f"op {node['id']!r} differs in {field}: {mine.get(field)!r} against {yours.get(field)!r}"
    for op in ours.ops:
        mine_into = {(edge.source, edge.output, edge.tensor, edge.bytes) for edge in ours.edges_into[op.id]}
        other_into = {(edge.source, edge.output, edge.tensor, edge.bytes) for edge in theirs.edges_into[op.id]}
        if mine_into != other_into:
            return f"op {op.id!r} reads other tensors: {sorted(mine_into ^ other_into)[0]}"
    return None


def _without_costs(node: dict[str, Any]) -> dict[str, Any]:
    return {key: field for key, field in node.items() if key not in _COSTS}
