"""Reading and writing of graph, topology and plan files (``dlplacer.graph/1`` and so on), and the structure hash."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, create_model, model_validator

from dlplacer.core.constraints import Constraints
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import STATUSES, DeviceMemory, Plan, ScheduledOp, Transfer
from dlplacer.core.record import Count, Number, OneOf, Seconds
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.fields import FileModel, ListOf, Table, plain, without

_noted = partial(create_model, __config__=ConfigDict(strict=True))
_Argument: Any = _noted("Argument", path=(str, ""), shape=(list[Count], []), dtype=(str, ""))
_Onnx: Any = _noted("Onnx", sha256=(str, ""), dims=(dict[str, Count], {}))
_Capture = _noted(
    "Capture",
    **dict.fromkeys(("entry", "loss", "autocast", "optimizer", "granularity"), (str | None, None)),
    **dict.fromkeys(("mode", "torch"), (str, "")),
    **dict.fromkeys(("rewrites", "measured_on"), (list[str], [])),
    args=(list[_Argument], []),
    colocate_backward=(bool, False),
    onnx=(_Onnx | None, None),
    collectives=(dict[str, Any] | None, None),
)
"""The fields of ``capture`` that dlplacer reads; others are allowed."""
_FITS_CAPTURE = AfterValidator(lambda value: _Capture.model_validate(value) and value)


class _NodeLinkFile(FileModel):
    """The fields that graph and topology files share, including keys of networkx's node-link form."""

    format: str
    name: str = ""
    source: str = ""
    multigraph: bool = False
    graph: Table
    meta: Table


class GraphFile(_NodeLinkFile):
    """A graph file; its nodes are the ops of a graph."""

    FORMAT = "dlplacer.graph/1"
    directed: bool = True
    nodes: list[Op]
    edges: ListOf[Annotated[Edge, without("key")]]
    capture: Annotated[dict[str, Any], _FITS_CAPTURE] | None = None
    structure_sha256: str | None = None
    known: dict[str, Any] | None = None
    constraints: Constraints | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_parallel_edges(cls, value: Any) -> Any:
        """Give the second and later edges between two ops tensors of their own, unless they name one."""
        edges = value.get("edges") if isinstance(value, dict) and value.get("multigraph") is True else None
        if not isinstance(edges, list):
            return value
        named = [
            edge | {"tensor": edge.get("tensor") or _tensor(ends, edge.get("output", 0), number)}
            if number > 1
            else edge
            for edge, ends, number in _numbered(edges)
        ]
        return value | {"edges": named}

    def mistakes(self) -> Iterator[str]:
        if not self.directed:
            yield "directed: false; a dataflow graph is directed"
        for position, (_, ends, number) in enumerate(_numbered(self.edges) if not self.multigraph else ()):
            if number > 1:
                joined = " → ".join(map(repr, ends))
                yield f'edges[{position}]: {joined} is given twice; remove it or set "multigraph": true'

    def value(self) -> OpGraph:
        head = (self.name, self.source, self.capture, self.structure_sha256, self.known, self.meta)
        return OpGraph(tuple(self.nodes), tuple(self.edges), *head, self.constraints or Constraints())


def _kind_of(value: Any) -> str:
    return f"<{value.get('kind')}>" if isinstance(value, dict) else "<other>"


Node = Annotated[
    Annotated[Device, without("kind"), Tag("<device>")] | Annotated[Router, without("kind"), Tag("<router>")],
    Discriminator(_kind_of, "kind", "'kind' must be 'device' or 'router'"),
]


class TopologyFile(_NodeLinkFile):
    """A topology file; its edges are the links of a topology."""

    FORMAT = "dlplacer.topology/1"
    directed: bool = False
    nodes: list[Node]
    edges: ListOf[Annotated[Link, without("key")]]

    def value(self) -> Topology:
        devices = tuple(node for node in self.nodes if isinstance(node, Device))
        routers = tuple(node for node in self.nodes if isinstance(node, Router))
        return Topology(devices, routers, tuple(self.edges), self.name, self.source, self.meta)


class ProblemFile(FileModel):
    """The problem that a plan solves."""

    graph: GraphFile
    topology: TopologyFile
    options: Options
    meta: Table


class PlanFile(FileModel):
    """A plan file."""

    FORMAT = "dlplacer.plan/1"
    format: str
    name: str = ""
    source: str = ""
    problem: ProblemFile
    status: Annotated[str, OneOf(STATUSES)]
    makespan_s: Seconds
    lower_bound_s: Seconds
    gap: Annotated[float, Number(at_most=1)]
    rounding_s: Seconds = 0.0
    method: str
    solve_s: Seconds = 0.0
    ops: list[Annotated[ScheduledOp, without("meta")]]
    transfers: ListOf[Annotated[Transfer, without("meta")]]
    memory: Annotated[dict[str, DeviceMemory], Field(default_factory=dict)]
    provenance: Table
    meta: Table
    period_s: Seconds | None = None

    def mistakes(self) -> Iterator[str]:
        parts = {"graph": self.problem.graph, "topology": self.problem.topology}
        for name, part in parts.items():
            if (mistake := part.format_mistake(part.format)) is not None:
                yield f"problem.{name}.format: {mistake}"
        yield from (f"problem.graph.{mistake}" for mistake in self.problem.graph.mistakes())

    def value(self) -> Plan:
        problem = self.problem
        parts = (problem.graph.value(), problem.topology.value(), problem.options)
        return Plan(*parts, **{name: getattr(self, name) for name in _OF_PLAN})


_OF_PLAN = [name for name in PlanFile.model_fields if name in Plan.__dataclass_fields__]

read_graph: Callable[..., OpGraph] = GraphFile.read
read_topology: Callable[..., Topology] = TopologyFile.read
read_plan: Callable[..., Plan] = PlanFile.read


def graph_to_dict(graph: OpGraph) -> dict[str, Any]:
    """The JSON object of a graph file; fields that hold their default are left out."""
    edges = []
    for edge, ends, number in _numbered(graph.edges):
        edges.append(plain(edge))
        if edge.tensor == _tensor(ends, edge.output, number):
            del edges[-1]["tensor"]
    parallel = len({(edge.source, edge.target) for edge in graph.edges}) < len(edges)
    head = _head(GraphFile, graph) | {"directed": True, "multigraph": parallel}
    for name in ("capture", "structure_sha256", "known", "meta", "constraints"):
        value = getattr(graph, name)
        if value or (value is not None and name in ("capture", "known")):
            head[name] = plain(value, all_fields=True)
    return head | {"nodes": [plain(op) for op in graph.ops], "edges": edges}


def topology_to_dict(topology: Topology) -> dict[str, Any]:
    """The JSON object of a topology file; fields that hold their default are left out."""
    head = _head(TopologyFile, topology) | ({"meta": plain(topology.meta)} if topology.meta else {})
    nodes = [
        {"id": node.id, "kind": kind, **({"type": node.type} if isinstance(node, Device) else {}), **plain(node)}
        for kind, entries in (("device", topology.devices), ("router", topology.routers))
        for node in entries
    ]
    return head | {"nodes": nodes, "edges": [plain(link) for link in topology.links]}


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The JSON object of a plan file."""
    value = {name: plain(getattr(plan, name)) for name in _OF_PLAN if getattr(plan, name) not in (None, {})}
    problem = {"topology": topology_to_dict(plan.topology), "graph": graph_to_dict(plan.graph)}
    return {"format": PlanFile.FORMAT, **value, "problem": {"options": plan.options.to_dict(), **problem}}


def _head(kind: type[FileModel], value: OpGraph | Topology) -> dict[str, Any]:
    return {"format": kind.FORMAT, "name": value.name, "source": value.source}


def _numbered(edges: Iterable[Any]) -> Iterator[tuple[Any, tuple[str, str], int]]:
    """(Edge or its object in a file, ends, number): edges with the same two ends are numbered from 1."""
    count: Counter[tuple[str, str]] = Counter()
    for edge in edges:
        found = edge if isinstance(edge, dict) else {name: getattr(edge, name, "") for name in ("source", "target")}
        ends = str(found.get("source")), str(found.get("target"))
        count[ends] += 1
        yield edge, ends, count[ends] if isinstance(edge, (dict, Edge)) else 1


def _tensor(ends: tuple[str, str], output: int, number: int) -> str:
    """The default name of the tensor that an edge carries."""
    return f"{ends[0]}:{output}->{ends[1]}" + (f"#{number}" if number > 1 else "")


_COSTS = ("time_s", "flops", "bytes_accessed", "workspace_bytes", "meta")


def structure_sha256(graph: OpGraph) -> str:
    """SHA-256 of a graph's ops and edges without times, FLOPs, bytes accessed, workspace and ``meta``."""
    value = graph_to_dict(graph)
    edges = [{key: field for key, field in edge.items() if key != "meta"} for edge in value["edges"]]
    return hashlib.sha256(json.dumps([_without_costs(value), edges], sort_keys=True).encode()).hexdigest()


def first_difference(ours: OpGraph, theirs: OpGraph) -> str | None:
    """A text that names the first op in which the structures of two graphs differ; None if they are equal."""
    mine, yours = ({node["id"]: node for node in _without_costs(graph_to_dict(graph))} for graph in (ours, theirs))
    for name, node in (mine | yours).items():
        if name not in mine or name not in yours:
            return f"op {name!r} ({node['kind']}) is only in the {'first' if name in mine else 'second'}"
        for field in sorted(mine[name].keys() | node.keys()):
            if mine[name].get(field) != node.get(field):
                return f"op {name!r} differs in {field}: {mine[name].get(field)!r} against {node.get(field)!r}"
        read, reads = ({(e.source, e.output, e.tensor, e.bytes) for e in g.edges_into[name]} for g in (ours, theirs))
        if other := read ^ reads:
            return f"op {name!r} reads other tensors: {min(other)}"
    return None


def _without_costs(value: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: field for key, field in node.items() if key not in _COSTS} for node in value["nodes"]]
