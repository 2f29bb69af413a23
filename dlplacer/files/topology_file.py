"""Topology files, format ``dlplacer.topology/1``."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dlplacer.errors import FileFormatError
from dlplacer.files.fields import (
    Bytes,
    BytesPerSecond,
    FileModel,
    FlopsPerSecond,
    Meta,
    Name,
    Seconds,
    built,
    load_model,
    parse_model,
)
from dlplacer.files.text import write_json
from dlplacer.topology import Device, Link, Router, Topology

KIND, VERSION = "topology", 1
_DEVICE_FIELDS = ("type", "memory_bytes", "flops_per_s", "memory_bytes_per_s")


class NodeModel(FileModel):
    id: Name
    kind: Literal["device", "router"]
    type: Name | None = None
    memory_bytes: Bytes | None = None
    flops_per_s: FlopsPerSecond | dict[str, FlopsPerSecond] | None = None
    memory_bytes_per_s: BytesPerSecond | None = None
    meta: Meta = {}


class LinkModel(FileModel):
    source: Name
    target: Name
    bytes_per_s: BytesPerSecond
    latency_s: Seconds = 0.0
    duplex: Literal["full", "half"] = "full"
    count: Annotated[int, Field(ge=1)] = 1
    key: int | None = None
    meta: Meta = {}


class TopologyModel(FileModel):
    format: str
    name: str = ""
    source: str = ""
    directed: bool = False
    multigraph: bool = False
    graph: dict[str, Any] = {}
    nodes: list[NodeModel]
    edges: list[LinkModel] = []
    meta: Meta = {}


def read_topology(path: Path) -> Topology:
    """The topology in a file.

    Raises
    ------
    FileFormatError
        With every mistake and its path.
    """
    return _to_topology(load_model(path, TopologyModel, KIND, VERSION), str(path))


def topology_from_dict(value: Any, where: str) -> Topology:
    """The topology in a JSON value, as `read_topology`; `where` names it in messages."""
    return _to_topology(parse_model(value, TopologyModel, KIND, VERSION, where), where)


def write_topology(path: Path, topology: Topology) -> None:
    """Write a topology file atomically."""
    write_json(path, topology_to_dict(topology))


def topology_to_dict(topology: Topology) -> dict[str, Any]:
    """The JSON object of a topology file; fields that hold their default are left out."""
    head: dict[str, Any] = {
        "format": f"dlplacer.{KIND}/{VERSION}",
        "name": topology.name,
        "source": topology.source,
    }
    if topology.meta:
        head["meta"] = dict(topology.meta)
    nodes = [_device_to_dict(device) for device in topology.devices]
    nodes += [_with_meta({"id": router.id, "kind": "router"}, router.meta) for router in topology.routers]
    return head | {"nodes": nodes, "edges": [_link_to_dict(link) for link in topology.links]}


def _to_topology(model: TopologyModel, where: str) -> Topology:
    mistakes = [
        f"nodes[{position}].{name}: router {node.id!r} runs nothing; only devices have a {name}"
        for position, node in enumerate(model.nodes)
        for name in _DEVICE_FIELDS
        if node.kind == "router" and getattr(node, name) is not None
    ]
    if mistakes:
        raise FileFormatError(where, mistakes)
    devices = tuple(
        Device(
            node.id, node.type or "device", node.memory_bytes, node.flops_per_s, node.memory_bytes_per_s, node.meta
        )
        for node in model.nodes
        if node.kind == "device"
    )
    routers = tuple(Router(node.id, node.meta) for node in model.nodes if node.kind == "router")
    links = tuple(
        built(
            where,
            Link,
            edge.source,
            edge.target,
            edge.bytes_per_s,
            edge.latency_s,
            edge.duplex,
            edge.count,
            edge.meta,
        )
        for edge in model.edges
    )
    topology: Topology = built(where, Topology, devices, routers, links, model.name, model.source, model.meta)
    return topology


def _device_to_dict(device: Device) -> dict[str, Any]:
    node: dict[str, Any] = {"id": device.id, "kind": "device", "type": device.type}
    for name in ("memory_bytes", "flops_per_s", "memory_bytes_per_s"):
        value = getattr(device, name)
        if value is not None:
            node[name] = value if isinstance(value, (int, float)) else dict(value)
    return _with_meta(node, device.meta)


def _link_to_dict(link: Link) -> dict[str, Any]:
    entry: dict[str, Any] = {"source": link.source, "target": link.target, "bytes_per_s": link.bytes_per_s}
    default = Link(link.source, link.target, link.bytes_per_s)
    for name in ("latency_s", "duplex", "count"):
        if getattr(link, name) != getattr(default, name):
            entry[name] = getattr(link, name)
    return _with_meta(entry, link.meta)


def _with_meta(entry: dict[str, Any], meta: Any) -> dict[str, Any]:
    return entry | ({"meta": dict(meta)} if meta else {})
