"""Graph files made by hand, and broken ones with the mistakes that are listed."""

from typing import Any

import pytest

from dlplacer.core.errors import FileFormatError
from dlplacer.files.graph_file import graph_from_dict

FORMAT = "dlplacer.graph/1"


def node(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"id": name, "kind": "test"} | fields


def edge(source: str = "a", target: str = "b", size_bytes: Any = 4, **fields: Any) -> dict[str, Any]:
    return {"source": source, "target": target, "bytes": size_bytes} | fields


def file(*nodes: Any, edges: Any = (), **fields: Any) -> dict[str, Any]:
    return {"format": FORMAT, "nodes": list(nodes), "edges": list(edges)} | fields


def mistakes_in(value: Any) -> list[str]:
    with pytest.raises(FileFormatError) as caught:
        graph_from_dict(value, "it.json")
    assert str(caught.value).startswith("it.json: ")
    return list(caught.value.mistakes)


MISTAKES: dict[str, tuple[Any, list[str]]] = {
    "unknown field of the file": (
        file(node(), titel="x"),
        ["titel: unknown field; remove it or put it under 'meta'"],
    ),
    "unknown field of a node": (
        file(node(flop=1)),
        ["nodes[0].flop: unknown field; remove it or put it under 'meta' (in 'a')"],
    ),
    "unknown field of an edge": (
        file(node("a"), node("b"), edges=[edge(size=1)]),
        ["edges[0].size: unknown field; remove it or put it under 'meta' (in 'a' → 'b')"],
    ),
    "missing fields": (
        file({}, {"id": "b"}, edges=[{"source": "b"}]),
        [
            "nodes[0].id: required, but missing",
            "nodes[0].kind: required, but missing",
            "nodes[1].kind: required, but missing (in 'b')",
            "edges[0].target: required, but missing",
            "edges[0].bytes: required, but missing",
        ],
    ),
    "no nodes at all": ({"format": FORMAT}, ["nodes: required, but missing"]),
    "no op": (file(), ["nodes: the graph has no ops; add at least one node"]),
    "empty ids": (
        file(node(""), edges=[edge("", "")]),
        [
            "nodes[0].id: must not be empty (it is '')",
            "edges[0].source: must not be empty (it is '')",
            "edges[0].target: must not be empty (it is '')",
        ],
    ),
    "negative numbers": (
        file(
            node(
                "a", time_s=-1, weight_bytes=-2, flops="-3 GFLOP", outputs=[{"shape": [-4], "dtype": "f", "bytes": -5}]
            ),
            node("b", time_s={"gpu": -6}),
            edges=[edge(size_bytes=-7, output=-8)],
        ),
        [
            "nodes[0].time_s: must be at least 0 (it is -1, in 'a')",
            "nodes[0].flops: must be at least 0 (it is '-3 GFLOP', in 'a')",
            "nodes[0].outputs[0].shape[0]: must be at least 0 (it is -4, in 'a')",
            "nodes[0].outputs[0].bytes: must be at least 0 (it is -5, in 'a')",
            "nodes[0].weight_bytes: must be at least 0 (it is -2, in 'a')",
            "nodes[1].time_s.gpu: must be at least 0 (it is -6, in 'b')",
            "edges[0].bytes: must be at least 0 (it is -7, in 'a' → 'b')",
            "edges[0].output: must be at least 0 (it is -8, in 'a' → 'b')",
        ],
    ),
    "a capture that cannot be repeated": (
        file(
            node(),
            capture={
                "entry": 1,
                "rewrites": ["drop-detach", None],
                "args": [{"shape": 3}],
                "onnx": {"dims": {"batch": "2"}},
                "note": [],
            },
        ),
        [
            "capture.entry: must be a text (it is 1)",
            "capture.args[0].shape: must be a list (it is 3)",
            "capture.rewrites[1]: must be a text (it is null)",
            "capture.onnx.dims.batch: must be a whole number (it is '2')",
        ],
    ),
    "numbers that are not finite": (
        file(node(time_s=float("nan"), weight_bytes=float("inf"), flops=10**400, state_bytes=10**400)),
        [
            "nodes[0].time_s: nan is not finite (in 'a')",
            "nodes[0].flops: the number is too large (in 'a')",
            "nodes[0].weight_bytes: inf is not finite (in 'a')",
            "nodes[0].state_bytes: the number is too large (in 'a')",
        ],
    ),
    "quantities that cannot be read": (
        file(node(time_s="soon", flops="1 GB", weight_bytes="1.5 B", bytes_accessed="1e400 B")),
        [
            "nodes[0].time_s: 'soon' is not a number with a unit; write for example '25 us' (in 'a')",
            "nodes[0].flops: '1 GB' has unit 'GB'; use one of FLOP, GFLOP, KFLOP, MFLOP, PFLOP, TFLOP, kFLOP (in 'a')",
            "nodes[0].bytes_accessed: '1e400 B' is too large (in 'a')",
            "nodes[0].weight_bytes: 1.5 is not a whole number of bytes (in 'a')",
        ],
    ),
    "wrong types": (
        file(
            node(
                time_s=[1],
                flops=True,
                outputs={},
                weight_bytes=False,
                module=3,
                origin="o",
                devices="gpu",
                attrs=[],
                phase=1,
            ),
            {"id": 7, "kind": None},
            3,
            name=None,
            directed="yes",
            capture="x",
        ),
        [
            "name: must be a text (it is null)",
            "directed: must be true or false (it is 'yes')",
            "nodes[0].time_s: must be a number (it is [1], in 'a')",
            "nodes[0].flops: must be a number (it is true, in 'a')",
            "nodes[0].outputs: must be a list (it is {}, in 'a')",
            "nodes[0].weight_bytes: must be a whole number (it is false, in 'a')",
            "nodes[0].phase: must be 'forward', 'backward' or 'optimizer' (it is 1, in 'a')",
            "nodes[0].module: must be a text (it is 3, in 'a')",
            "nodes[0].origin: must be a list (it is 'o', in 'a')",
            "nodes[0].devices: must be a list (it is 'gpu', in 'a')",
            "nodes[0].attrs: must be an object (it is [], in 'a')",
            "nodes[1].id: must be a text (it is 7)",
            "nodes[1].kind: must be a text (it is null, in 7)",
            "nodes[2]: must be an object (it is 3)",
            "capture: must be an object (it is 'x')",
        ],
    ),
    "times per type": (
        file(node(time_s={"float32": "x", "int8": True, "str": -1, "": None})),
        [
            "nodes[0].time_s.float32: 'x' is not a number with a unit; write for example '25 us' (in 'a')",
            "nodes[0].time_s.int8: must be a number (it is true, in 'a')",
            "nodes[0].time_s.str: must be at least 0 (it is -1, in 'a')",
            "nodes[0].time_s.: must be a number (it is null, in 'a')",
        ],
    ),
    "nodes and edges of the wrong type": (
        {"format": FORMAT, "nodes": {"a": {}}, "edges": 5},
        ["nodes: must be a list (it is {'a': {}})", "edges: must be a list (it is 5)"],
    ),
    "ids given twice": (
        file(node("a"), node("b"), node("a"), node("b"), node("a")),
        [
            "nodes[2].id: 'a' is given twice; rename one",
            "nodes[3].id: 'b' is given twice; rename one",
            "nodes[4].id: 'a' is given twice; rename one",
        ],
    ),
    "edges to nowhere": (
        file(node("a"), edges=[edge("a", "x"), edge("y", "a"), edge("y", "x")]),
        [
            "edges[0].target: there is no node 'x'; add it or remove the edge",
            "edges[1].source: there is no node 'y'; add it or remove the edge",
            "edges[2].source: there is no node 'y'; add it or remove the edge",
            "edges[2].target: there is no node 'x'; add it or remove the edge",
        ],
    ),
    "parallel edges": (
        file(node("a"), node("b"), edges=[edge(), edge(), edge()]),
        [
            "edges[1]: 'a' → 'b' is given twice; remove it or set \"multigraph\": true",
            "edges[2]: 'a' → 'b' is given twice; remove it or set \"multigraph\": true",
        ],
    ),
    "tensors that disagree": (
        file(
            node("a"),
            node("b"),
            node("c"),
            edges=[edge(tensor="t"), edge("a", "c", 5, tensor="t"), edge("b", "c", tensor="t")],
        ),
        [
            "edges[1].tensor: tensor 't': the edge to 'c' says 5 bytes of output 0 of 'a', the edge to 'b' says 4 "
            "bytes of output 0 of 'a'; edges of one tensor must agree",
            "edges[2].tensor: tensor 't': the edge to 'c' says 4 bytes of output 0 of 'b', the edge to 'b' says 4 "
            "bytes of output 0 of 'a'; edges of one tensor must agree",
        ],
    ),
    "an output that is not there": (
        file(node("a", outputs=[{"shape": [], "dtype": "f", "bytes": 4}]), node("b"), edges=[edge(output=1)]),
        ["edges[0].output: edge 'a' → 'b' reads output 1; 'a' has 1 output, counted from 0"],
    ),
    "an op that reads itself": (
        file(node("a"), edges=[edge("a", "a")]),
        ["edges: the graph has a cycle: 'a' → 'a'; remove one of its edges"],
    ),
    "undirected": (file(node(), directed=False), ["directed: false; a dataflow graph is directed"]),
    "half a surrogate pair": (
        file(node("\ud800")),
        ["nodes[0].id: holds half a surrogate pair, which is no text (it is '\\ud800')"],
    ),
    "very long values": (
        file(node(module=["x" * 10_000], time_s="y" * 10_000, **{"z" * 10: 1})),
        [
            f"nodes[0].time_s: '{'y' * 12}...{'y' * 13}' is not a number with a unit; write for example '25 us' "
            "(in 'a')",
            f"nodes[0].module: must be a text (it is ['{'x' * 27}...{'x' * 28}'], in 'a')",
            f"nodes[0].{'z' * 10}: unknown field; remove it or put it under 'meta' (in 'a')",
        ],
    ),
    "all at once": (
        file(
            node("a", time_s=-1),
            node("a", kind=2),
            node("b"),
            edges=[edge("a", "x", size=3), edge(size_bytes="?"), edge("b", "a", tensor=5)],
            multigraph=1,
        ),
        [
            "multigraph: must be true or false (it is 1)",
            "nodes[0].time_s: must be at least 0 (it is -1, in 'a')",
            "nodes[1].kind: must be a text (it is 2, in 'a')",
            "edges[0].size: unknown field; remove it or put it under 'meta' (in 'a' → 'x')",
            "edges[1].bytes: '?' is not a number with a unit; write for example '25 GiB' (in 'a' → 'b')",
            "edges[2].tensor: must be a text (it is 5, in 'b' → 'a')",
            "nodes[1].id: 'a' is given twice; rename one",
            "edges[0].target: there is no node 'x'; add it or remove the edge",
        ],
    ),
}
