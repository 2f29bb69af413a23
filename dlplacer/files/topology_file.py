"""Topology files, format ``dlplacer.topology/1``."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.fields import FileModel, ListOf, NodeLinkFile, plain, read_value, without

KIND, VERSION = "topology", 1


class OtherNode(FileModel, extra="ignore"):
    """A node of no kind that there is."""

    kind: Literal["device", "router"]


def _kind_of(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else None
    return f"<{kind}>" if kind in ("device", "router") else "<other>"


Node = Annotated[
    Annotated[Device, without("kind"), Tag("<device>")]
    | Annotated[Router, without("kind"), Tag("<router>")]
    | Annotated[OtherNode, Tag("<other>")],
    Discriminator(_kind_of),
]


class TopologyFile(NodeLinkFile):
    """A topology file; edges are the links of a topology."""

    directed: bool = False
    nodes: list[Node]
    edges: ListOf[Annotated[Link, without("key")]]

    def value(self) -> Topology:
        devices = tuple(node for node in self.nodes if isinstance(node, Device))
        routers = tuple(node for node in self.nodes if isinstance(node, Router))
        return Topology(devices, routers, tuple(self.edges), self.name, self.source, self.meta)


def read_topology(source: Any, where: str = "") -> Topology:
    """The topology in a file, given its path; with `where`, which names it in messages, in a JSON value.

    Raises FileFormatError with every mistake and its path.
    """
    topology: Topology = read_value(source, TopologyFile, KIND, VERSION, where)
    return topology


def topology_to_dict(topology: Topology) -> dict[str, Any]:
    """The JSON object of a topology file; fields that hold their default are left out."""
    head = {"format": f"dlplacer.{KIND}/{VERSION}", "name": topology.name, "source": topology.source}
    if topology.meta:
        head["meta"] = plain(topology.meta)
    nodes = [
        {"id": node.id, "kind": kind, **({"type": node.type} if isinstance(node, Device) else {}), **plain(node)}
        for kind, entries in (("device", topology.devices), ("router", topology.routers))
        for node in entries
    ]
    return head | {"nodes": nodes, "edges": [plain(link) for link in topology.links]}
