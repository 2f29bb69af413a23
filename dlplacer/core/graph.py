"""The dataflow graph of a model: ops K and edges E of table 2 of Pal et al. 2019."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from operator import attrgetter
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InputError
from dlplacer.core.expect import short_name, unknown
from dlplacer.core.op import Edge, Op, OutputPart
from dlplacer.core.record import Record, record
from dlplacer.core.units import format_bytes


@record(frozen=True, repr=False)
class OpGraph(Shown, Record):
    """A dataflow graph, validated on construction: unique ids, edges between known ops and outputs, no cycle.

    >>> graph = dp.OpGraph(
    ...     ops=[dp.Op("load", "input"), dp.Op("multiply", "matmul", time_s=2e-3)],
    ...     edges=[dp.Edge("load", "multiply", bytes=4096)],
    ...     name="tiny",
    ... )
    >>> graph
    <OpGraph 'tiny': 2 ops, 1 edge>

    `capture` holds the settings of the graph's capture, and `structure_sha256` hashes everything but costs; both are
    None if the graph was not captured from a model. `known` is a known result: topology, options, makespan_s, source.

    Raises InputError if there are no ops, an id is repeated, an edge names an unknown op or output, edges of one tensor
    disagree, the graph has a cycle, or a constraint names an unknown op.
    """

    ops: tuple[Op, ...]
    edges: tuple[Edge, ...] = ()
    name: str = ""
    source: str = ""
    capture: Mapping[str, Any] | None = None
    structure_sha256: str | None = None
    known: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        mistakes = [*graph_mistakes(self.ops, self.edges)]
        if not mistakes and len(self.topological_order) < len(self.ops):
            mistakes = [self._cycle_mistake()]
        known = {op.id for op in self.ops}
        named = sorted(self.constraints.names - known)
        mistakes += [f"the constraints name op {name!r}, which the graph lacks; remove it" for name in named]
        if mistakes:
            raise InputError("\n".join(mistakes))

    def __repr__(self) -> str:
        ops, edges = len(self.ops), len(self.edges)
        weights = sum(op.weight_bytes for op in self.ops)
        stored = f", {format_bytes(weights)} of weights" if weights else ""
        counted = f"{ops} op{'s' * (ops != 1)}, {edges} edge{'s' * (edges != 1)}"
        return f"<OpGraph {short_name(self.name)}: {counted}{stored}>"

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Op id → position in `ops`."""
        return {op.id: position for position, op in enumerate(self.ops)}

    @cached_property
    def colocation_groups(self) -> tuple[tuple[str, ...], ...]:
        """Sets of op ids that share a device, in file order; overlapping `Op.colocate` groups and constraints merge."""
        from networkx.utils import UnionFind

        joined = UnionFind(op.id for op in self.ops if op.colocate is not None)
        named: dict[str, str] = {}
        for op in self.ops:
            if op.colocate is not None:
                joined.union(named.setdefault(op.colocate, op.id), op.id)
        for ops in self.constraints.colocate:
            joined.union(*ops)
        groups: dict[str, list[str]] = {}
        for op in self.ops:
            if op.id in joined.parents:
                groups.setdefault(joined[op.id], []).append(op.id)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    def op(self, op_id: str) -> Op:
        """The op of this id.

        Raises InputError if there is none; the message suggests ops with similar ids.
        """
        try:
            return self.ops[self.index[op_id]]
        except (KeyError, TypeError):
            raise unknown("op", op_id, self.index, f"graph {short_name(self.name)}") from None

    @cached_property
    def edges_into(self) -> Mapping[str, tuple[Edge, ...]]:
        """Op id → the edges that end at the op, in file order."""
        return self._edges_by("target")

    @cached_property
    def edges_from(self) -> Mapping[str, tuple[Edge, ...]]:
        """Op id → the edges that start at the op, in file order."""
        return self._edges_by("source")

    @cached_property
    def output_parts(self) -> Mapping[str, tuple[OutputPart, ...]]:
        """Op id → the parts of its `output_bytes` that are freed separately: one for each output.

        An output that becomes a gradient may be charged to its parameter, and is then no part. If the sizes of the
        outputs do not add up to `output_bytes`, all outputs form one part.
        """
        return {op.id: tuple(self._parts_of(op)) for op in self.ops if op.output_bytes}

    def _parts_of(self, op: Op) -> Iterator[OutputPart]:
        numbered = {number: spec.bytes for number, spec in enumerate(op.outputs)}
        edges = self.edges_from[op.id]
        if sum(numbered.values()) != op.output_bytes:
            # Captured graphs charge gradients to the parameters and not to these outputs.
            charged = {edge.output for edge in edges if numbered and self.op(edge.target).kind == "gradient"}
            rest = {number: size for number, size in numbered.items() if number not in charged}
            if sum(rest.values()) != op.output_bytes:
                yield OutputPart(op.output_bytes, frozenset({*numbered, *(edge.output for edge in edges)}))
                return
            numbered = rest
        yield from (OutputPart(size, frozenset({number})) for number, size in numbered.items() if size)

    @cached_property
    def topological_order(self) -> tuple[str, ...]:
        """Op ids, each after the ops that it reads, by Kahn's algorithm from the file's order."""
        edges_from = self.edges_from
        missing = {op: len(edges) for op, edges in self.edges_into.items()}
        order = [op for op, count in missing.items() if not count]
        for done in order:
            for edge in edges_from[done]:
                missing[edge.target] -= 1
                if missing[edge.target] == 0:
                    order.append(edge.target)
        return tuple(order)

    def to_networkx(self) -> Any:
        """A networkx MultiDiGraph whose nodes carry their `Op` and whose edges carry their `Edge`."""
        import networkx as nx

        graph = nx.MultiDiGraph(name=self.name)
        graph.add_nodes_from((op.id, {"op": op}) for op in self.ops)
        graph.add_edges_from((edge.source, edge.target, {"edge": edge}) for edge in self.edges)
        return graph

    def _cycle_mistake(self) -> str:
        import networkx as nx

        found = nx.find_cycle(nx.DiGraph((edge.source, edge.target) for edge in self.edges))
        names = [repr(target) for _, target in found]
        shown = names if len(names) <= 12 else [*names[:6], f"({len(names) - 12} more)", *names[-6:]]
        return f"the graph has a cycle: {' → '.join([names[-1], *shown])}; remove one of its edges"

    def _edges_by(self, end: str) -> dict[str, tuple[Edge, ...]]:
        grouped: dict[str, list[Edge]] = {op.id: [] for op in self.ops}
        for name, edge in zip(map(attrgetter(end), self.edges), self.edges, strict=True):
            grouped[name].append(edge)
        return {op_id: tuple(edges) for op_id, edges in grouped.items()}


def reference_mistakes(noun: str, nodes: Iterable[Any], edges: Iterable[Any]) -> Iterator[str]:
    """A message for each repeated id, and for each end of an edge that is not a known id."""
    known: set[str] = set()
    for node in nodes:
        if node.id in known:
            yield f"{noun} {node.id!r} is given twice; rename one"
        known.add(node.id)
    for edge in edges:
        for name in (edge.source, edge.target):
            if name not in known:
                yield f"{edge.label} names {noun} {name!r}, which is not there; add it"


def graph_mistakes(ops: Sequence[Op], edges: Sequence[Edge]) -> Iterator[str]:
    """A message for each mistake but cycles: wrong references, missing outputs, edges of one tensor that disagree."""
    if not ops:
        yield "the graph has no ops; add at least one node"
    yield from reference_mistakes("op", ops, edges)
    output_count = {op.id: len(op.outputs) for op in ops}
    first: dict[str, Edge] = {}
    for edge in edges:
        count = output_count.get(edge.source, 0)
        if 0 < count <= edge.output:
            yield f"{edge.label} reads output {edge.output}; {edge.source!r} has {count}, counted from 0"
        other = first.setdefault(edge.tensor, edge)
        if other is not edge and (edge.bytes, edge.source, edge.output) != (other.bytes, other.source, other.output):
            ours, theirs = (
                f"the edge to {each.target!r} says {each.bytes} bytes of output {each.output} of {each.source!r}"
                for each in (edge, other)
            )
            yield f"tensor {edge.tensor!r}: {ours}, {theirs}; edges of one tensor must agree"
