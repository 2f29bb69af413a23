"""Graph files made by hand, and broken ones with the mistakes that are listed."""

from typing import Any

import pytest

from dlplacer.core.errors import FileFormatError
from dlplacer.files.formats import read_graph

FORMAT = "dlplacer.graph/1"


def node(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"id": name, "kind": "test"} | fields


def edge(source: str = "a", target: str = "b", size_bytes: Any = 4, **fields: Any) -> dict[str, Any]:
    return {"source": source, "target": target, "bytes": size_bytes} | fields


def file(*nodes: Any, edges: Any = (), **fields: Any) -> dict[str, Any]:
    return {"format": FORMAT, "nodes": list(nodes), "edges": list(edges)} | fields


def mistakes_in(value: Any) -> list[str]:
    with pytest.raises(FileFormatError) as caught:
        read_graph(value, "it.json")
    assert str(caught.value).startswith("it.json: ")
    return list(caught.value.mistakes)


MISTAKES: dict[str, tuple[Any, list[str]]] = {
    "unknown field of a node": (file(node(flop=1)), ["nodes[0].flop"]),
    "missing fields": (
        file({}, {"id": "b"}, edges=[{"source": "b"}]),
        ["nodes[0].id", "nodes[0].kind", "nodes[1].kind", "edges[0].target", "edges[0].bytes"],
    ),
    "no nodes at all": ({"format": FORMAT}, ["nodes"]),
    "negative numbers": (
        file(node(time_s={"gpu": -6}, flops="-3 GFLOP", outputs=[{"shape": [-4], "dtype": "f", "bytes": -5}])),
        ["nodes[0].time_s.gpu", "nodes[0].flops", "nodes[0].outputs[0].shape[0]", "nodes[0].outputs[0].bytes"],
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
        ["capture.entry", "capture.rewrites[1]", "capture.args[0].shape", "capture.onnx.dims.batch"],
    ),
    "numbers that are not finite": (
        file(node(time_s=float("nan"), weight_bytes=float("inf"), flops=10**400, state_bytes=10**400)),
        ["nodes[0].time_s", "nodes[0].flops", "nodes[0].weight_bytes", "nodes[0].state_bytes"],
    ),
    "quantities that cannot be read": (
        file(node(time_s="soon", flops="1 GB", weight_bytes="1.5 B", bytes_accessed="1e400 B")),
        ["nodes[0].time_s", "nodes[0].flops", "nodes[0].bytes_accessed", "nodes[0].weight_bytes"],
    ),
    "wrong types": (
        file(node(flops=True, outputs={}, module=3, origin="o", attrs=[]), {"id": 7, "kind": None}, 3, directed="yes"),
        [
            "directed",
            *(f"nodes[0].{name}" for name in ("flops", "outputs", "module", "origin", "attrs")),
            *("nodes[1].id", "nodes[1].kind", "nodes[2]"),
        ],
    ),
    "parallel edges": (file(node("a"), node("b"), edges=[edge(), edge(), edge()]), ["edges[1]", "edges[2]"]),
    "undirected": (file(node(), directed=False), ["directed"]),
}
