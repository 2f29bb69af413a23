"""Topology files: what is written reads back, and every mistake is listed with its path."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.files.formats import read_topology

FORMAT = "dlplacer.topology/1"


def device(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"id": name, "kind": "device"} | fields


def link(source: str = "a", target: str = "b", rate: Any = 4, **fields: Any) -> dict[str, Any]:
    return {"source": source, "target": target, "bytes_per_s": rate} | fields


def file(*nodes: Any, edges: Any = (), **fields: Any) -> dict[str, Any]:
    return {"format": FORMAT, "nodes": list(nodes), "edges": list(edges)} | fields


def mistakes_in(value: Any) -> list[str]:
    with pytest.raises(FileFormatError) as caught:
        read_topology(value, "it.json")
    assert str(caught.value).startswith("it.json: ")
    return list(caught.value.mistakes)


@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiGraph])
def test_node_link_data_of_networkx(kind: Any) -> None:
    graph = kind(name="made elsewhere")
    graph.add_node("a", kind="device", memory_bytes="1 GiB")
    graph.add_node("b", kind="device")
    graph.add_edge("a", "b", bytes_per_s="25 GB/s")
    value = {"format": FORMAT, "name": "tiny", "source": "a test"} | nx.node_link_data(graph, edges="edges")
    topology = read_topology(json.loads(json.dumps(value)), "it.json")
    assert (topology.name, topology.source) == ("tiny", "a test")
    assert topology.links == (Link("a", "b", 25e9),)


MISTAKES: dict[str, tuple[Any, list[str]]] = {
    "kinds": (file(device(kind="gpu"), device("b", kind=None)), ["nodes[0]", "nodes[1]"]),
    "a router with memory": (
        file(device(), {"id": "r", "kind": "router", "memory_bytes": 0, "type": "switch"}),
        ["nodes[1].memory_bytes", "nodes[1].type"],
    ),
    "numbers out of range": (
        file(
            device(flops_per_s=0, memory_bytes_per_s="0 GB/s"),
            device("b", flops_per_s={"float32": -1, "int8": True}, type=""),
            edges=[link(rate=0, count=0, duplex="simplex")],
        ),
        [
            *("nodes[0].flops_per_s", "nodes[0].memory_bytes_per_s", "nodes[1].type"),
            *("nodes[1].flops_per_s.float32", "nodes[1].flops_per_s.int8"),
            *("edges[0].bytes_per_s", "edges[0].duplex", "edges[0].count"),
        ],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_listed_with_its_path(name: str) -> None:
    value, expected = MISTAKES[name]
    assert [mistake.partition(": ")[0] for mistake in mistakes_in(value)] == expected


def test_who_issues_ops_is_kept_and_left_out_where_it_is_not_said(tmp_path: Path) -> None:
    devices = (
        Device("a", dispatch_s=7e-6),
        Device("b", dispatch_s=1.4e-5, process="host", asynchronous=False),
        Device("c"),
    )
    Topology(devices).save(tmp_path / "box.json")
    assert read_topology(tmp_path / "box.json") == Topology(devices)
    nodes = json.loads((tmp_path / "box.json").read_text())["nodes"]
    assert [sorted(set(node) - {"id", "kind", "type"}) for node in nodes] == [
        ["dispatch_s"],
        ["asynchronous", "dispatch_s", "process"],
        [],
    ]
