"""Graph files, format ``dlplacer.graph/1``."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dlplacer.core.constraints import Constraints
from dlplacer.core.expect import expect, expect_path
from dlplacer.core.graph import OpGraph
from dlplacer.core.graph_mistakes import cycle_mistake, tensor_mistakes
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.files.capture_fields import CaptureModel
from dlplacer.files.fields import (
    AmountOfBytes,
    Bytes,
    Count,
    FileModel,
    Flops,
    ListOf,
    Name,
    NumberOrTable,
    Seconds,
    Table,
    built,
    field_mistakes,
    load_model,
    parse_model,
    reference_mistakes,
)
from dlplacer.files.text import write_json

KIND, VERSION = "graph", 1


class OutputModel(FileModel):
    shape: list[Count]
    dtype: str
    bytes: Bytes


class GraphNodeModel(FileModel):
    id: Name
    kind: str
    time_s: NumberOrTable[Seconds] | None = None
    flops: Flops = 0
    bytes_accessed: AmountOfBytes = 0
    dtype: str | None = None
    outputs: ListOf[OutputModel]
    weight_bytes: Bytes = 0
    gradient_bytes: Bytes = 0
    state_bytes: Bytes = 0
    output_bytes: Bytes = 0
    workspace_bytes: Bytes = 0
    phase: Literal["forward", "backward", "optimizer"] | None = None
    module: str | None = None
    origin: ListOf[str]
    colocate: str | None = None
    devices: list[str] | None = None
    attrs: Table
    meta: Table

    def to_op(self) -> Op:
        values = dict(vars(self))
        values["outputs"] = tuple(TensorSpec(tuple(spec.shape), spec.dtype, spec.bytes) for spec in self.outputs)
        values["origin"] = tuple(self.origin)
        values["devices"] = None if self.devices is None else tuple(self.devices)
        return Op(**values)


class EdgeModel(FileModel):
    source: Name
    target: Name
    bytes: Bytes
    output: Count = 0
    tensor: str = ""
    key: Any = None
    meta: Table


class ConstraintsModel(FileModel):
    pins: Annotated[dict[str, Name], Field(default_factory=dict)]
    colocate: ListOf[Annotated[list[Name], Field(min_length=2)]]

    def to_constraints(self) -> Constraints:
        return Constraints(self.pins, tuple(map(tuple, self.colocate)))


class GraphModel(FileModel):
    format: str
    name: str = ""
    source: str = ""
    directed: bool = True
    multigraph: bool = False
    graph: Table
    nodes: list[GraphNodeModel]
    edges: ListOf[EdgeModel]
    capture: dict[str, Any] | None = None
    structure_sha256: str | None = None
    known: dict[str, Any] | None = None
    constraints: ConstraintsModel | None = None
    meta: Table

    def mistakes(self) -> Iterator[str]:
        if not self.directed:
            yield "directed: false; a dataflow graph is directed"
        for position, (edge, number) in enumerate(zip(self.edges, self._edge_numbers, strict=True)):
            if number > 1 and not self.multigraph:
                yield (
                    f"edges[{position}]: {edge.source!r} → {edge.target!r} is given twice; remove it or set "
                    '"multigraph": true'
                )
        if self.capture is not None:
            yield from (f"capture.{mistake}" for mistake in field_mistakes(self.capture, CaptureModel))

    def located(self) -> Iterator[str]:
        if not self.nodes:
            yield "nodes: the graph has no ops; add at least one node"
        yield from reference_mistakes(self.model_dump(include={"nodes", "edges"}))
        for position, name, mistake in tensor_mistakes(
            {node.id: len(node.outputs) for node in self.nodes}, self._built_edges
        ):
            yield f"edges[{position}].{name}: {mistake}"
        if self.constraints is not None:
            known = {node.id for node in self.nodes}
            for name in sorted(self.constraints.to_constraints().names - known):
                yield f"constraints: op {name!r} is not among the nodes"
        cycle = cycle_mistake(self._built_edges)
        if cycle is not None:
            yield f"edges: {cycle}"

    @cached_property
    def _edge_numbers(self) -> list[int]:
        return list(_numbers((edge.source, edge.target) for edge in self.edges))

    @cached_property
    def _built_edges(self) -> tuple[Edge, ...]:
        return tuple(
            Edge(
                edge.source,
                edge.target,
                edge.bytes,
                edge.output,
                edge.tensor or _default_tensor(edge.source, edge.output, edge.target, number),
                edge.meta,
            )
            for edge, number in zip(self.edges, self._edge_numbers, strict=True)
        )

    def to_graph(self) -> OpGraph:
        return OpGraph(
            tuple(node.to_op() for node in self.nodes),
            self._built_edges,
            self.name,
            self.source,
            self.capture,
            self.structure_sha256,
            self.known,
            self.meta,
            Constraints() if self.constraints is None else self.constraints.to_constraints(),
        )


def read_graph(path: Path) -> OpGraph:
    """The graph in a file.

    Raises
    ------
    FileFormatError
        With every mistake and its path.
    """
    content = load_model(path, GraphModel, KIND, VERSION)
    return built(str(path), content.to_graph, located=content.located)


def graph_from_dict(value: Any, where: str) -> OpGraph:
    """The graph in a JSON value, as `read_graph`; `where` names it in messages."""
    content = parse_model(value, GraphModel, KIND, VERSION, where)
    return built(where, content.to_graph, located=content.located)


def write_graph(path: str | PathLike[str], graph: OpGraph) -> None:
    """Write a graph file atomically.

    Raises
    ------
    InputError
        If the file cannot be written, or an argument is of a wrong type.
    """
    expect_path(path)
    expect("", "graph", graph, OpGraph, "an object of class OpGraph")
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
    if graph.constraints:
        sets = [list(ops) for ops in graph.constraints.colocate]
        head["constraints"] = {"pins": dict(graph.constraints.pins), "colocate": sets}
    numbers = _numbers((edge.source, edge.target) for edge in graph.edges)
    return head | {
        "nodes": [_node_to_dict(op) for op in graph.ops],
        "edges": [_edge_to_dict(edge, number) for edge, number in zip(graph.edges, numbers, strict=True)],
    }


def _numbers(pairs: Iterable[tuple[str, str]]) -> Iterator[int]:
    """1 for the first edge between two ops, 2 for the next that is parallel to it, and so on."""
    count: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        count[pair] += 1
        yield count[pair]


def _default_tensor(source: str, output: int, target: str, number: int) -> str:
    return f"{source}:{output}->{target}" + (f"#{number}" if number > 1 else "")


def _has_parallel_edges(graph: OpGraph) -> bool:
    return len({(edge.source, edge.target) for edge in graph.edges}) < len(graph.edges)


def _node_to_dict(op: Op) -> dict[str, Any]:
    node: dict[str, Any] = {"id": op.id, "kind": op.kind}
    for name, default in _defaults().items():
        value = getattr(op, name)
        if value == default:
            continue
        if name == "outputs":
            value = [{"shape": list(spec.shape), "dtype": spec.dtype, "bytes": spec.bytes} for spec in op.outputs]
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        node[name] = value
    return node


@cache
def _defaults() -> dict[str, Any]:
    """Optional field of a node → what it holds where a file says nothing."""
    default = Op("op", "kind")
    return {name: getattr(default, name) for name in GraphNodeModel.model_fields if name not in ("id", "kind")}


def _edge_to_dict(edge: Edge, number: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"source": edge.source, "target": edge.target, "bytes": edge.bytes}
    if edge.output:
        entry["output"] = edge.output
    if edge.tensor != _default_tensor(edge.source, edge.output, edge.target, number):
        entry["tensor"] = edge.tensor
    if edge.meta:
        entry["meta"] = dict(edge.meta)
    return entry
