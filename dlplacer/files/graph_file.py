"""Graph files, format ``dlplacer.graph/1``."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, create_model, model_validator

from dlplacer.core.constraints import Constraints
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.record import Count
from dlplacer.files.fields import ListOf, NodeLinkFile, plain, read_value, without

KIND, VERSION = "graph", 1


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
"""The fields of ``capture`` that something reads; it may hold others."""
_FITS_CAPTURE = AfterValidator(lambda value: _Capture.model_validate(value) and value)


class GraphFile(NodeLinkFile):
    """A graph file; nodes and edges are the ops and edges of a graph."""

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
        edges = value.get("edges") if isinstance(value, dict) and value.get("multigraph") is True else None
        return value | {"edges": [*_with_tensors(edges)]} if isinstance(edges, list) else value

    def mistakes(self) -> Iterator[str]:
        if not self.directed:
            yield "directed: false; a dataflow graph is directed"
        if not self.multigraph:
            for position, (edge, number) in enumerate(_numbered(self.edges)):
                if number > 1:
                    yield (
                        f"edges[{position}]: {edge.source!r} → {edge.target!r} is given twice; remove it or set "
                        '"multigraph": true'
                    )

    def value(self) -> OpGraph:
        head = (self.name, self.source, self.capture, self.structure_sha256, self.known, self.meta)
        return OpGraph(tuple(self.nodes), tuple(self.edges), *head, self.constraints or Constraints())


def read_graph(source: Any, where: str = "") -> OpGraph:
    """The graph in a file, given its path; with `where`, which names it in messages, in a JSON value.

    Raises FileFormatError with every mistake and its path.
    """
    graph: OpGraph = read_value(source, GraphFile, KIND, VERSION, where)
    return graph


def graph_to_dict(graph: OpGraph) -> dict[str, Any]:
    """The JSON object of a graph file; fields that hold their default are left out."""
    edges = []
    for edge, number in _numbered(graph.edges):
        edges.append(plain(edge))
        if edge.tensor == _default_tensor(edge.source, edge.output, edge.target, number):
            del edges[-1]["tensor"]
    parallel = len({(edge.source, edge.target) for edge in graph.edges}) < len(edges)
    head: dict[str, Any] = {"format": f"dlplacer.{KIND}/{VERSION}", "name": graph.name, "source": graph.source}
    head |= {"directed": True, "multigraph": parallel}
    for name in ("capture", "structure_sha256", "known", "meta", "constraints"):
        value = getattr(graph, name)
        if value or (value is not None and name in ("capture", "known")):
            head[name] = plain(value, all_fields=True)
    return head | {"nodes": [plain(op) for op in graph.ops], "edges": edges}


def _numbered(edges: Iterable[Edge]) -> Iterator[tuple[Edge, int]]:
    """Every edge with 1, or 2 if it is the second between its ops, and so on."""
    count: Counter[tuple[str, str]] = Counter()
    for edge in edges:
        count[edge.source, edge.target] += 1
        yield edge, count[edge.source, edge.target]


def _with_tensors(edges: Iterable[Any]) -> Iterator[Any]:
    """Edges of a file, the second and later between two ops with names for their tensors."""
    count: Counter[tuple[str, str]] = Counter()
    for edge in edges:
        if isinstance(edge, dict):
            ends = str(edge.get("source")), str(edge.get("target"))
            count[ends] += 1
            if count[ends] > 1 and not edge.get("tensor"):
                edge = edge | {"tensor": _default_tensor(ends[0], edge.get("output", 0), ends[1], count[ends])}
        yield edge


def _default_tensor(source: str, output: int, target: str, number: int) -> str:
    return f"{source}:{output}->{target}" + (f"#{number}" if number > 1 else "")
