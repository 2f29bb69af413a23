"""A graph in networkx's node-link form, or a topology file, as a topology."""

from collections.abc import Mapping
from typing import Any

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Topology
from dlplacer.core.units import parse_quantity
from dlplacer.files.topology_file import topology_from_dict

_RATES = ("bytes_per_s", "bandwidth", "bw")
_LATENCIES = ("latency_s", "latency")
_OURS = frozenset(("id", "kind", "type", "memory_bytes", "flops_per_s", "memory_bytes_per_s", "meta"))


def topology_of_node_link(value: Any, where: str, name: str = "") -> Topology:
    """The topology in a parsed node-link object.

    Nodes are devices unless their ``kind`` says ``router`` or ``switch``. An edge needs its rate as ``bytes_per_s``,
    ``bandwidth`` or ``bw``: bytes per second, or a text with its unit; ``latency_s`` or ``latency``: seconds, or a
    text. Edges may stand under ``edges`` or ``links``. The two directions of a directed graph must be equal; parallel
    edges of equal rate are bonded. Other attributes go to ``meta``.

    Raises
    ------
    FileFormatError
        With every mistake and its path.
    """
    if not isinstance(value, Mapping):
        raise FileFormatError(where, ["the file holds no object; networkx.node_link_data writes one"])
    if "format" in value:
        return topology_from_dict(dict(value), where)
    edges = value.get("edges", value.get("links"))
    nodes = value.get("nodes")
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise FileFormatError(
            where, ["'nodes' and 'edges' (or 'links') must be lists, as networkx.node_link_data writes"]
        )
    mistakes = [
        f"nodes[{place}]: no object with an id"
        for place, node in enumerate(nodes)
        if not _has(node, "id") or node["id"] is None
    ]
    mistakes += [
        f"edges[{place}]: no object with a source and a target"
        for place, edge in enumerate(edges)
        if not _has(edge, "source", "target")
    ]
    mistakes += [
        f"edges[{place}]: no rate; give {' or '.join(_RATES)}"
        for place, edge in enumerate(edges)
        if _has(edge, "source", "target") and _first(edge, _RATES) is None
    ]
    mistakes += [
        f"edges[{place}].count: must be a whole number of at least 1"
        for place, edge in enumerate(edges)
        if _has(edge, "count") and (type(edge["count"]) is not int or edge["count"] < 1)
    ]
    mistakes += [
        f"nodes[{place}].meta: must be an object"
        for place, node in enumerate(nodes)
        if _has(node, "meta") and not isinstance(node["meta"], Mapping)
    ]
    if mistakes:
        raise FileFormatError(where, mistakes)
    content = {
        "format": "dlplacer.topology/1",
        "name": name or str(_graph_name(value)),
        "source": "networkx node-link",
        "nodes": [_node(node) for node in nodes],
        "edges": _edges(edges, bool(value.get("directed")), where),
    }
    return topology_from_dict(content, where)


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: node[key] for key in _OURS if key in node}
    kept["id"] = str(node["id"])
    kept["kind"] = "router" if str(node.get("kind", "device")).lower() in ("router", "switch", "host") else "device"
    extra = {key: other for key, other in node.items() if key not in _OURS}
    return kept | ({"meta": {**dict(kept.get("meta", {})), **extra}} if extra else {})


def _edges(edges: list[Mapping[str, Any]], directed: bool, where: str) -> list[dict[str, Any]]:
    """One entry for every pair of nodes."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for edge in edges:
        entry = {
            "source": str(edge["source"]),
            "target": str(edge["target"]),
            "bytes_per_s": _first(edge, _RATES),
            "latency_s": _first(edge, _LATENCIES) or 0,
        }
        entry |= {key: edge[key] for key in ("duplex", "count") if key in edge}
        pair = entry["source"], entry["target"]
        # Without directions it does not matter which end a parallel edge names first.
        found.setdefault(pair if directed or pair[::-1] not in found else pair[::-1], []).append(entry)
    merged: dict[frozenset[str], dict[str, Any]] = {}
    for pair, entries in found.items():
        first = entries[0]
        if any(_cost(entry) != _cost(first) for entry in entries):
            raise FileFormatError(
                where, [f"edges {pair[0]!r} → {pair[1]!r}: parallel edges differ; put a router on one"]
            )
        bonded = first | ({"count": sum(entry.get("count", 1) for entry in entries)} if len(entries) > 1 else {})
        back = merged.get(frozenset(pair))
        if back is None:
            merged[frozenset(pair)] = bonded
        elif _cost(back) != _cost(bonded) or back.get("count", 1) != bonded.get("count", 1):
            raise FileFormatError(
                where, [f"edges {pair[0]!r} – {pair[1]!r}: the two directions differ; links are symmetric"]
            )
    return list(merged.values())


def _cost(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        _value(entry["bytes_per_s"], "bytes_per_s"),
        _value(entry["latency_s"], "seconds"),
        entry.get("duplex", "full"),
    )


def _value(given: Any, dimension: str) -> Any:
    """What a text with a unit says; what is none is told of where the file is read."""
    try:
        return parse_quantity(given, dimension) if isinstance(given, str) else given
    except ValueError:
        return given


def _has(value: Any, *keys: str) -> bool:
    return isinstance(value, Mapping) and all(key in value for key in keys)


def _first(entry: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((entry[key] for key in keys if key in entry), None)


def _graph_name(value: Mapping[str, Any]) -> Any:
    about = value.get("graph")
    return about.get("name", "") if isinstance(about, Mapping) else ""
