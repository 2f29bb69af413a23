"""Graph files: what is written reads back, and every mistake is listed with its path."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from files.graph_mistakes import FORMAT, MISTAKES, edge, file, mistakes_in, node
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import FileFormatError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import PHASES, Edge, Op, TensorSpec
from dlplacer.files.formats import graph_to_dict, read_graph, structure_sha256
from dlplacer.files.text import render_json

NAMES = st.text("abcé漢 /_.", min_size=1, max_size=6)
BYTES = st.integers(0, 2**50)
SECONDS = st.floats(0, 1e6) | st.integers(0, 100)
META = st.dictionaries(
    NAMES, st.none() | st.booleans() | st.integers() | NAMES | st.lists(NAMES, max_size=2), max_size=2
)


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    outputs = st.builds(TensorSpec, st.lists(st.integers(0, 9), max_size=3).map(tuple), NAMES, BYTES)
    ops = tuple(
        Op(
            id=name,
            kind=draw(NAMES),
            time_s=draw(st.none() | SECONDS | st.dictionaries(NAMES, SECONDS, max_size=2)),
            flops=draw(SECONDS),
            bytes_accessed=draw(SECONDS),
            dtype=draw(st.none() | NAMES),
            outputs=tuple(draw(st.sampled_from([[], draw(st.lists(outputs, min_size=2, max_size=3))]))),
            weight_bytes=draw(BYTES),
            workspace_bytes=draw(BYTES),
            phase=draw(st.none() | st.sampled_from(PHASES)),
            module=draw(st.none() | NAMES),
            origin=tuple(draw(st.lists(NAMES, max_size=2))),
            colocate=draw(st.none() | NAMES),
            devices=draw(st.none() | st.lists(NAMES, max_size=2).map(tuple)),
            attrs=draw(META),
            meta=draw(META),
        )
        for name in names
    )
    edges = [
        # Parallel edges: some share the default tensor of the first, some have one of their own.
        Edge(source, target, size_bytes := draw(BYTES), output := draw(st.integers(0, 1)), meta=draw(META))
        if copy == 0
        else Edge(source, target, size_bytes, output, draw(st.sampled_from(["", f"{source}-{target}-{copy}"])))
        for position, source in enumerate(names)
        for target in names[position + 1 :]
        for copy in range(draw(st.integers(0, 3)))
    ]
    head = {name: draw(st.none() | META) for name in ("capture", "known")}
    return OpGraph(ops, tuple(edges), draw(NAMES), draw(NAMES), structure_sha256=draw(st.none() | NAMES), **head)


@given(graphs())
def test_graphs_round_trip(graph: OpGraph) -> None:
    again = read_graph(json.loads(render_json(graph_to_dict(graph))), "it.json")
    assert again == graph
    assert graph_to_dict(again) == graph_to_dict(graph)


def test_files_round_trip(tmp_path: Path) -> None:
    ops = (Op("a", "aten.relu", {"gpu": 1e-6}, meta={"note": [1]}), Op("b", "aten.add", 2.5e-6, phase="forward"))
    graph = OpGraph(ops, (Edge("a", "b", 4),), "tiny", "by hand", meta={"by": "me"})
    graph.save(tmp_path / "it.json")
    assert read_graph(tmp_path / "it.json") == graph
    assert (tmp_path / "it.json").read_text().splitlines()[-7:-1] == [
        '    {"id": "a", "kind": "aten.relu", "time_s": {"gpu": 1e-06}, "meta": {"note": [1]}},',
        '    {"id": "b", "kind": "aten.add", "time_s": 2.5e-06, "phase": "forward"}',
        "  ],",
        '  "edges": [',
        '    {"source": "a", "target": "b", "bytes": 4}',
        "  ]",
    ]


def test_quantities_with_units() -> None:
    value = node(time_s="1.5 us", flops="2 GFLOP", bytes_accessed="3 MB", weight_bytes="1.5 KiB", state_bytes=1e3)
    by_type = node("b", time_s={"gpu": "2 ms", "float32": 1})
    graph = read_graph(file(value, by_type, edges=[edge(size_bytes="4 kB")]), "it.json")
    assert graph.ops[0] == Op("a", "test", 1.5e-6, 2e9, 3e6, weight_bytes=1536, state_bytes=1000)
    assert graph.ops[1].time_s == {"gpu": 2e-3, "float32": 1.0}
    assert graph.edges[0].bytes == 4000


def test_parallel_edges_are_tensors_of_their_own() -> None:
    value = file(node("a"), node("b"), edges=[edge(), edge(), edge(output=1)], multigraph=True)
    graph = read_graph(value, "it.json")
    assert [found.tensor for found in graph.edges] == ["a:0->b", "a:0->b#2", "a:1->b#3"]
    assert read_graph(graph_to_dict(graph), "it.json") == graph


@pytest.mark.parametrize("kind", [nx.DiGraph, nx.MultiDiGraph])
def test_node_link_data_of_networkx(kind: Any) -> None:
    graph = kind(name="made elsewhere")
    graph.add_node("a", kind="input", time_s=0)
    graph.add_node("b", kind="op", time_s="2 ms")
    graph.add_edge("a", "b", bytes=4)
    if graph.is_multigraph():
        graph.add_edge("a", "b", ("second", 2), bytes=8)
    value = {"format": FORMAT} | nx.node_link_data(graph, edges="edges")
    read = read_graph(json.loads(json.dumps(value)), "it.json")
    assert [op.kind for op in read.ops] == ["input", "op"]
    assert [found.bytes for found in read.edges] == [4, 8][: len(read.edges)]


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_listed_with_its_path(name: str) -> None:
    value, expected = MISTAKES[name]
    assert [mistake.partition(": ")[0] for mistake in mistakes_in(value)] == expected


def test_every_contradiction_is_a_line() -> None:
    value = file(node("a"), node("b"), node("a"), edges=[edge("a", "x"), edge("y", "a"), edge("a", "b")])
    assert mistakes_in(value) == [
        "op 'a' is given twice; rename one",
        "edge 'a' → 'x' names op 'x', which is not there; add it",
        "edge 'y' → 'a' names op 'y', which is not there; add it",
    ]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], "the file"),
        ({"nodes": []}, "format"),
        ({"format": "dlplacer.graph/2", "new": 1}, "format"),
        ({"format": "dlplacer.topology/1"}, "format"),
        ({"format": 1}, "format"),
    ],
)
def test_what_is_no_graph_file_of_this_version(value: Any, path: str) -> None:
    (mistake,) = mistakes_in(value)
    assert mistake.partition(": ")[0] == path


def test_constraints_round_trip_and_leave_the_structure_alone() -> None:
    graph = OpGraph((Op("a", "x", 1.0), Op("b", "x", 1.0)), (Edge("a", "b", 1),))
    held = replace(graph, constraints=Constraints({"a": "gpu0"}, (("a", "b"),)))
    value = graph_to_dict(held)
    assert value["constraints"] == {"pins": {"a": "gpu0"}, "colocate": [["a", "b"]]}
    assert read_graph(value, "file") == held
    assert "constraints" not in graph_to_dict(graph)
    assert structure_sha256(held) == structure_sha256(graph)
    value["constraints"]["pins"]["c"] = "gpu1"
    with pytest.raises(FileFormatError, match="the constraints name op 'c'"):
        read_graph(value, "file")
