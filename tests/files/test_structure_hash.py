"""The structure of a graph: what counts, what does not, and what is said about a difference."""

from dataclasses import replace

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.files.formats import first_difference, structure_sha256

GRAPH = OpGraph(
    (
        Op("a", "aten.mm", 1.0, 10, 20, "float32", (TensorSpec((2, 3), "float32", 24),), output_bytes=24),
        Op("b", "aten.relu", colocate="g", module="fc", attrs={"target": "aten.relu.default"}),
    ),
    (Edge("a", "b", 24, 0, "x"),),
)


def with_op(**fields: object) -> OpGraph:
    return replace(GRAPH, ops=(replace(GRAPH.ops[0], **fields), GRAPH.ops[1]))


COSTS: dict[str, OpGraph] = {
    "time": with_op(time_s={"V100": 2.0}),
    "flops": with_op(flops=11),
    "workspace": with_op(workspace_bytes=5),
    "notes": with_op(meta={"seen": True}),
    "notes of an edge": replace(GRAPH, edges=(replace(GRAPH.edges[0], meta={"seen": True}),)),
    "name": replace(GRAPH, name="other", source="elsewhere", capture={"torch": "x"}, meta={"note": 1}),
}

CHANGES: dict[str, tuple[OpGraph, str]] = {
    "kind": (with_op(kind="aten.bmm"), "op 'a' differs in kind: 'aten.mm' against 'aten.bmm'"),
    "shape": (with_op(outputs=(TensorSpec((3, 2), "float32", 24),)), "op 'a' differs in outputs"),
    "group": (with_op(colocate="g"), "op 'a' differs in colocate: None against 'g'"),
    "attributes": (with_op(attrs={"args": [1]}), "op 'a' differs in attrs"),
    "edge": (replace(GRAPH, edges=(Edge("a", "b", 12, 0, "x"),)), "op 'b' reads other tensors: ('a', 0, 'x', 12)"),
    "no edge": (replace(GRAPH, edges=()), "op 'b' reads other tensors: ('a', 0, 'x', 24)"),
    "one op less": (OpGraph(GRAPH.ops[:1]), "op 'b' (aten.relu) is only in the first"),
    "one op more": (replace(GRAPH, ops=(*GRAPH.ops, Op("c", "test"))), "op 'c' (test) is only in the second"),
}


@pytest.mark.parametrize("name", COSTS)
def test_costs_and_notes_do_not_count(name: str) -> None:
    assert structure_sha256(COSTS[name]) == structure_sha256(GRAPH)
    assert first_difference(GRAPH, COSTS[name]) is None


@pytest.mark.parametrize("name", CHANGES)
def test_everything_else_counts_and_is_named(name: str) -> None:
    other, message = CHANGES[name]
    assert structure_sha256(other) != structure_sha256(GRAPH)
    difference = first_difference(GRAPH, other)
    assert difference is not None
    assert difference.startswith(message)


def test_the_hash_does_not_change_between_versions() -> None:
    assert structure_sha256(GRAPH) == structure_sha256(OpGraph(GRAPH.ops, GRAPH.edges))
    assert structure_sha256(GRAPH)[:16] == "026c25458d1932ca"
