"""Graph files, format ``dlplacer.graph/1``."""

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from dlplacer.errors import FileFormatError
from dlplacer.files.fields import AmountOfBytes, Bytes, FileModel, Flops, Meta, Name, Seconds, built, load_model, parse_model
from dlplacer.files.text import write_json
from dlplacer.graph import Edge, Op, OpGraph, TensorSpec

KIND, VERSION = "graph", 1


class OutputModel(FileModel):
    shape: list[int]
    dtype: str
    bytes: Bytes


class NodeModel(FileModel):
    id: Name
    kind: str
    time_s: Seconds | dict[str, Seconds] | None = None
    flops: Flops = 0
    bytes_accessed: AmountOfBytes = 0
    dtype: str | None = None
    outputs: list[OutputModel] = []
    weight_bytes: Bytes = 0
    gradient_bytes: Bytes = 0
    state_bytes: Bytes = 0
    output_bytes: Bytes = 0
    workspace_bytes: Bytes = 0
    phase: Literal["forward", "backward", "optimizer"] | None = None
    module: str | None = None
    origin: list[str] = []
    colocate: str | None = None
    devices: list[str] | None = None
    attrs: dict[str, Any] = {}
    meta: Meta = {}

    def to_op(self) -> Op:
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values["outputs"] = tuple(TensorSpec(tuple(spec.shape), spec.dtype, spec.bytes) for spec in self.outputs)
        values["origin"] = tuple(self.origin)
        values["devices"] = None if self.devices is None else tuple(self.devices)
        return Op(**values)


class EdgeModel(FileModel):
    source: Name
    target: Name
    bytes: Bytes
    output: int = 0
    tensor: str = ""
    key: int | None = None
    meta: Meta = {}


class GraphModel(FileModel):
    format: str
    name: str = ""
    source: str = ""
    directed: bool = True
    multigraph: bool = False
    graph: dict[str, Any] = {}
    nodes: list[NodeModel]
    edges: list[EdgeModel] = []
    capture: dict[str, Any] | None = None
    structure_sha256: str | None = None
    known: dict[str, Any] | None = None
    meta: Meta = {}


def read_graph(path: Path) -> OpGraph:
    """The graph in a file.

    Raises
    ------
    FileFormatError
        With every mistake and its path.
    """
    return _to_graph(load_model(path, GraphModel, KIND, VERSION), str(path))


def graph_from_dict(value: Any, where: str) -> OpGraph:
    """The graph in a JSON value, as `read_graph`; `where` names it in messages."""
    return _to_graph(parse_model(value, GraphModel, KIND, VERSION, where), where)


def write_graph(path: Path, graph: OpGraph) -> None:
    """Write a graph file atomically."""
    write_json(path, graph_to_dict(graph))


def graph_to_dict(graph: OpGraph) -> dict[str, Any]:
    """The JSON object of a graph file; fields that hold their default are left out."""
    head: dict[str, Any] = {"format": f"dlplacer.{KIND}/{VERSION}", "name": graph.name, "source": graph.source}
    head |= {"directed": True, "multigraph": _has_parallel_edges(graph)}
    for name in ("capture", "structure_sha256", "known"):
        value = getattr(graph, name)
        if value is not None:
            head[name] = dict(value) if name != "structure_sha256" else value
    if graph.meta:
        head["meta"] = dict(graph.meta)
    return head | {
        "nodes": [_node_to_dict(op) for op in graph.ops],
        "edges": [_edge_to_dict(edge) for edge in graph.edges],
    }


def _to_graph(model: GraphModel, where: str) -> OpGraph:
    if not model.directed:
        raise FileFormatError(where, ["directed: false; a dataflow graph is directed"])
    edges = []
    count: Counter[tuple[str, str]] = Counter()
    mistakes = []
    for position, edge in enumerate(model.edges):
        count[edge.source, edge.target] += 1
        number = count[edge.source, edge.target]
        if number == 2 and not model.multigraph:
            mistakes.append(
                f"edges[{position}]: {edge.source!r} → {edge.target!r} is given twice; remove it or set "
                '"multigraph": true'
            )
        default = f"{edge.source}:{edge.output}->{edge.target}" + (f"#{number}" if number > 1 else "")
        edges.append(
            built(where, Edge, edge.source, edge.target, edge.bytes, edge.output, edge.tensor or default, edge.meta)
        )
    if mistakes:
        raise FileFormatError(where, mistakes)
    ops = tuple(built(where, node.to_op) for node in model.nodes)
    graph: OpGraph = built(
        where,
        OpGraph,
        ops,
        tuple(edges),
        model.name,
        model.source,
        model.capture,
        model.structure_sha256,
        model.known,
        model.meta,
    )
    return graph


def _has_parallel_edges(graph: OpGraph) -> bool:
    return len({(edge.source, edge.target) for edge in graph.edges}) < len(graph.edges)


def _node_to_dict(op: Op) -> dict[str, Any]:
    node: dict[str, Any] = {"id": op.id, "kind": op.kind}
    default = Op(op.id, op.kind)
    for name in NodeModel.model_fields:
        value = getattr(op, name)
        if name in node or value == getattr(default, name):
            continue
        if name == "outputs":
            value = [{"shape": list(spec.shape), "dtype": spec.dtype, "bytes": spec.bytes} for spec in op.outputs]
        elif isinstance(value, tuple):
            value = list(value)
        elif name in ("attrs", "meta") or name == "time_s" and not isinstance(value, (int, float)):
            value = dict(value)
        node[name] = value
    return node


def _edge_to_dict(edge: Edge) -> dict[str, Any]:
    entry: dict[str, Any] = {"source": edge.source, "target": edge.target, "bytes": edge.bytes}
    if edge.output:
        entry["output"] = edge.output
    if edge.tensor != f"{edge.source}:{edge.output}->{edge.target}":
        entry["tensor"] = edge.tensor
    if edge.meta:
        entry["meta"] = dict(edge.meta)
    return entry
