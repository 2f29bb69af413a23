"""A graph in networkx's node-link form, or a topology file, read as a topology."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.fields import FileModel, built, validated
from dlplacer.files.formats import Node, read_topology

_RATES = ("bytes_per_s", "bandwidth", "bw")
_LATENCIES = ("latency_s", "latency")
_OF_NODES = frozenset(("id", "kind", "type", "memory_bytes", "flops_per_s", "memory_bytes_per_s", "meta"))


class NodeLink(FileModel):
    """Nodes and edges, with the field names of topology files."""

    nodes: list[Node]
    edges: list[Link]


def topology_of_node_link(value: Any, where: str, name: str = "") -> Topology:
    """The topology in a parsed node-link object.

    Nodes are devices unless their ``kind`` is ``router``, ``switch`` or ``host``; their other attributes go to
    ``meta``. An edge needs its rate as ``bytes_per_s``, ``bandwidth`` or ``bw``: bytes per second, or a text with its
    unit. It may have ``latency_s`` or ``latency``: seconds, or a text. The list of edges is ``edges`` or ``links``. The
    two directions of a directed graph must be equal.

    Raises FileFormatError with every mistake and its path.
    """
    if not isinstance(value, Mapping):
        raise FileFormatError(where, ["the file holds no object; networkx.node_link_data writes one"])
    if "format" in value:
        return read_topology(dict(value), where)
    edges, nodes = value.get("edges", value.get("links")), value.get("nodes")
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise FileFormatError(
            where, ["'nodes' and 'edges' (or 'links') must be lists, as networkx.node_link_data writes"]
        )
    content = validated({"nodes": [*map(_node, nodes)], "edges": [*map(_edge, edges)]}, NodeLink, where)
    about = value.get("graph")
    given = about.get("name", "") if isinstance(about, Mapping) else ""
    return built(where, _topology, content, bool(value.get("directed")), name or str(given))


def _topology(content: NodeLink, directed: bool, name: str) -> Topology:
    return Topology(
        tuple(node for node in content.nodes if isinstance(node, Device)),
        tuple(node for node in content.nodes if isinstance(node, Router)),
        tuple(_undirected(content.edges) if directed else content.edges),
        name,
        "networkx node-link",
    )


def _node(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    kept = {key: str(entry) if key == "id" and entry is not None else entry for key, entry in node.items()}
    extra = {key: kept.pop(key) for key in node if key not in _OF_NODES}
    if extra and isinstance(meta := kept.get("meta", {}), Mapping):
        kept["meta"] = {**meta, **extra}
    forwards = str(node.get("kind", "device")).lower() in ("router", "switch", "host")
    return kept | {"kind": "router" if forwards else "device"}


def _edge(edge: Any) -> Any:
    if not isinstance(edge, Mapping):
        return edge
    kept = {key: edge[key] for key in ("duplex", "count") if key in edge}
    kept |= {key: str(edge[key]) for key in ("source", "target") if key in edge}
    for ours, *theirs in (_RATES, _LATENCIES):
        given = [edge[key] for key in (ours, *theirs) if edge.get(key) is not None]
        kept |= {ours: given[0]} if given else {}
    return kept


def _undirected(links: Iterable[Link]) -> Iterable[Link]:
    """One link for the two directions between nodes."""
    found: dict[frozenset[str], Link] = {}
    for link in links:
        back = found.setdefault(frozenset((link.source, link.target)), link)
        if replace(back, source=link.source, target=link.target) != link:
            ends = f"{link.source!r} – {link.target!r}"
            raise InputError(f"edges {ends}: the two directions differ; links are symmetric")
    return found.values()
