"""Topology files, format ``dlplacer.topology/1``."""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, expect_path
from dlplacer.core.topology import Device, Link, Router, Topology, repeated_links
from dlplacer.files.fields import (
    Bytes,
    BytesPerSecond,
    FileModel,
    FlopsPerSecond,
    ListOf,
    Name,
    NumberOrTable,
    Seconds,
    Table,
    built,
    load_model,
    parse_model,
    reference_mistakes,
)
from dlplacer.files.text import write_json

KIND, VERSION = "topology", 1
_DISPATCH_FIELDS = ("dispatch_s", "process", "asynchronous")
_LINK_FIELDS = ("latency_s", "duplex", "count")
_DEVICE_FIELDS = ("type", "memory_bytes", "flops_per_s", "memory_bytes_per_s", *_DISPATCH_FIELDS)


class TopologyNodeModel(FileModel):
    id: Name
    kind: Literal["device", "router"]
    type: Name | None = None
    memory_bytes: Bytes | None = None
    flops_per_s: NumberOrTable[FlopsPerSecond] | None = None
    memory_bytes_per_s: BytesPerSecond | None = None
    dispatch_s: Seconds | None = None
    process: Name | None = None
    asynchronous: bool | None = None
    meta: Table

    @model_validator(mode="after")
    def _routers_run_nothing(self) -> Self:
        given = [name for name in _DEVICE_FIELDS if getattr(self, name) is not None]
        if self.kind == "router" and given:
            raise ValueError(f"router {self.id!r} runs nothing; remove its {', '.join(given)}, which devices have")
        return self

    def to_node(self) -> Device | Router:
        if self.kind == "router":
            return Router(self.id, self.meta)
        return Device(
            self.id,
            self.type or "device",
            self.memory_bytes,
            self.flops_per_s,
            self.memory_bytes_per_s,
            self.meta,
            self.dispatch_s,
            self.process or "",
            self.asynchronous is not False,
        )


class LinkModel(FileModel):
    source: Name
    target: Name
    bytes_per_s: BytesPerSecond
    latency_s: Seconds = 0.0
    duplex: Literal["full", "half"] = "full"
    count: Annotated[int, Field(ge=1)] = 1
    key: Any = None
    meta: Table

    @model_validator(mode="after")
    def _is_a_link(self) -> Self:
        try:
            self.to_link()
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    def to_link(self) -> Link:
        return Link(
            self.source,
            self.target,
            self.bytes_per_s,
            self.latency_s,
            self.duplex,
            self.count,
            self.meta,
        )


class TopologyModel(FileModel):
    format: str
    name: str = ""
    source: str = ""
    directed: bool = False
    multigraph: bool = False
    graph: Table
    nodes: list[TopologyNodeModel]
    edges: ListOf[LinkModel]
    meta: Table

    def mistakes(self) -> Iterator[str]:
        if all(node.kind == "router" for node in self.nodes):
            yield "nodes: the topology has no devices; add a node of kind 'device'"
        for position, mistake in repeated_links(edge.to_link() for edge in self.edges):
            yield f"edges[{position}]: {mistake}"

    def located(self) -> Iterator[str]:
        yield from reference_mistakes(self.model_dump(include={"nodes", "edges"}))

    def to_topology(self) -> Topology:
        nodes = [node.to_node() for node in self.nodes]
        return Topology(
            tuple(node for node in nodes if isinstance(node, Device)),
            tuple(node for node in nodes if isinstance(node, Router)),
            tuple(edge.to_link() for edge in self.edges),
            self.name,
            self.source,
            self.meta,
        )


def read_topology(path: Path) -> Topology:
    """The topology in a file.

    Raises
    ------
    FileFormatError
        With every mistake and its path.
    """
    content = load_model(path, TopologyModel, KIND, VERSION)
    return built(str(path), content.to_topology, located=content.located)


def topology_from_dict(value: Any, where: str) -> Topology:
    """The topology in a JSON value, as `read_topology`; `where` names it in messages."""
    content = parse_model(value, TopologyModel, KIND, VERSION, where)
    return built(where, content.to_topology, located=content.located)


def write_topology(path: str | PathLike[str], topology: Topology) -> None:
    """Write a topology file atomically.

    Raises
    ------
    InputError
        If the file cannot be written, or an argument is of a wrong type.
    """
    expect_path(path)
    expect("", "topology", topology, Topology, "an object of class Topology")
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


def _device_to_dict(device: Device) -> dict[str, Any]:
    node: dict[str, Any] = {"id": device.id, "kind": "device", "type": device.type}
    for name in ("memory_bytes", "flops_per_s", "memory_bytes_per_s"):
        value = getattr(device, name)
        if value is not None:
            node[name] = value if isinstance(value, (int, float)) else dict(value)
    default = Device(device.id)
    given = {name: getattr(device, name) for name in _DISPATCH_FIELDS}
    node |= {name: value for name, value in given.items() if value != getattr(default, name)}
    return _with_meta(node, device.meta)


def _link_to_dict(link: Link) -> dict[str, Any]:
    entry: dict[str, Any] = {"source": link.source, "target": link.target, "bytes_per_s": link.bytes_per_s}
    default = Link(link.source, link.target, link.bytes_per_s)
    for name in _LINK_FIELDS:
        if getattr(link, name) != getattr(default, name):
            entry[name] = getattr(link, name)
    return _with_meta(entry, link.meta)


def _with_meta(entry: dict[str, Any], meta: Any) -> dict[str, Any]:
    return entry | ({"meta": dict(meta)} if meta else {})
