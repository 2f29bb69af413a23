"""The dataflow graph of a model: ops K, edges E, durations Δ(k), footprints M(k), bytes D(e) of the paper's Table 2."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dlplacer.core.abilities import Brief, Saved, Shown
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect_table, expect_text, expect_whole, refuse, short_name, tuple_of, unknown
from dlplacer.core.graph_mistakes import cycle_mistake, tensor_mistakes
from dlplacer.core.units import format_bytes

if TYPE_CHECKING:
    import pandas

PHASES = ("forward", "backward", "optimizer")
_AMOUNTS = (
    "flops",
    "bytes_accessed",
    "weight_bytes",
    "gradient_bytes",
    "state_bytes",
    "output_bytes",
    "workspace_bytes",
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One output of an op.

    Attributes
    ----------
    shape
        Sizes of the dimensions.
    dtype
        Name as torch prints it without its module: ``float32``.
    bytes
        Storage that the tensor needs; 0 for an output that nothing can read.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int

    def __post_init__(self) -> None:
        if type(self.shape) is not tuple:
            object.__setattr__(self, "shape", tuple_of("output", "shape", self.shape, int, "sizes"))
        if type(self.dtype) is not str:
            expect_text("output", dtype=self.dtype)
        for name, value in (*(("shape", size) for size in self.shape), ("bytes", self.bytes)):
            _require_amount(f"output of shape {list(self.shape)}", name, value)


@dataclass(frozen=True, repr=False)
class Op(Brief):
    """A vertex k of the dataflow graph.

    Attributes
    ----------
    id
        Unique name.
    kind
        Free text: ``aten.convolution``, ``parameter``, ``input``.
    time_s
        Δ(k): seconds on every device, or seconds per device type, or None if not known yet.
    flops, bytes_accessed
        Work of the op, for the roofline.
    dtype
        Of the arithmetic; chooses the peak rate of a device.
    outputs
        Its output tensors in order.
    weight_bytes, gradient_bytes, state_bytes, output_bytes, workspace_bytes
        The parts of the footprint M(k).
    phase
        One of `PHASES`, or None.
    module
        Path of the module that the op comes from (``Mixed_5b.branch1x1.conv``).
    origin
        Ids of the ops that a rewrite made this op from; empty for an original op.
    colocate
        Ops of one group run on one device.
    devices
        Names or types of the devices that may run the op; None allows all.
    attrs
        What is needed to run the op again.
    meta
        Free-form; no algorithm reads it.
    """

    id: str
    kind: str
    time_s: float | Mapping[str, float] | None = None
    flops: float = 0
    bytes_accessed: float = 0
    dtype: str | None = None
    outputs: tuple[TensorSpec, ...] = ()
    weight_bytes: int = 0
    gradient_bytes: int = 0
    state_bytes: int = 0
    output_bytes: int = 0
    workspace_bytes: int = 0
    phase: str | None = None
    module: str | None = None
    origin: tuple[str, ...] = ()
    colocate: str | None = None
    devices: tuple[str, ...] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (type(self.id) is type(self.kind) is str and type(self.outputs) is tuple and type(self.origin) is tuple):
            self._normalize()
        if any(text is not None and type(text) is not str for text in (self.dtype, self.module, self.colocate)):
            expect_text(f"op {self.id!r}", optional=True, dtype=self.dtype, module=self.module, colocate=self.colocate)
        if self.devices is not None and type(self.devices) is not tuple:
            names = tuple_of(f"op {self.id!r}", "devices", self.devices, str, "names or types of devices")
            object.__setattr__(self, "devices", names)
        if not self.id:
            raise InputError(f"an op of kind {self.kind!r} has no id; name it")
        if self.phase is not None and self.phase not in PHASES:
            raise InputError(f"op {self.id!r}: phase is {self.phase!r}; use one of {', '.join(PHASES)}")
        times = self.time_s if isinstance(self.time_s, Mapping) else {"": self.time_s}
        for device_type, time_s in times.items():
            label = f"time_s[{device_type}]" if device_type else "time_s"
            if time_s is not None:
                _require_amount(f"op {self.id!r}", label, time_s)
        for name in _AMOUNTS:
            _require_amount(f"op {self.id!r}", name, getattr(self, name))

    def _normalize(self) -> None:
        expect_text("op", id=self.id)
        expect_text(f"op {self.id!r}", kind=self.kind)
        for name, kind, accepted in (("outputs", TensorSpec, "TensorSpec"), ("origin", str, "ids of ops")):
            found = tuple_of(f"op {self.id!r}", name, getattr(self, name), kind, accepted)
            object.__setattr__(self, name, found)

    @property
    def footprint_bytes(self) -> int:
        """M(k) of eq. 13: weight + gradient + state + output + workspace bytes."""
        return self.weight_bytes + self.gradient_bytes + self.state_bytes + self.output_bytes + self.workspace_bytes

    def time_on(self, device_type: str) -> float | None:
        """Δ(k) in seconds on a device of this type, or None if the graph does not give it."""
        if isinstance(self.time_s, Mapping):
            return self.time_s.get(device_type)
        return self.time_s


@dataclass(frozen=True, repr=False)
class Edge(Brief):
    """An edge e of the dataflow graph: `target` reads a tensor of `source`.

    Attributes
    ----------
    bytes
        D(e): what travels if the ends are on different devices.
    output
        Index of the source's output.
    tensor
        Edges of one tensor carry the same data and agree in bytes; by default each edge has its own tensor.
    """

    source: str
    target: str
    bytes: int
    output: int = 0
    tensor: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not type(self.source) is type(self.target) is type(self.tensor) is str:
            expect_text("edge", source=self.source, target=self.target, tensor=self.tensor)
        if type(self.output) is not int:
            expect_whole(f"edge {self.source!r} → {self.target!r}", output=self.output)
        for name in ("bytes", "output"):
            _require_amount(f"edge {self.source!r} → {self.target!r}", name, getattr(self, name))
        if not self.tensor:
            object.__setattr__(self, "tensor", f"{self.source}:{self.output}->{self.target}")


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Outputs of an op that live and die together: their bytes, and the numbers of the outputs."""

    bytes: int
    outputs: frozenset[int]


@dataclass(frozen=True, repr=False)
class OpGraph(Saved, Shown):
    """A dataflow graph, checked at birth: unique ids, edges between known ops and outputs, no cycle.

    >>> import dlplacer as dp
    >>> graph = dp.OpGraph(
    ...     ops=[dp.Op("load", "input"), dp.Op("multiply", "matmul", time_s=2e-3)],
    ...     edges=[dp.Edge("load", "multiply", bytes=4096)],
    ...     name="tiny",
    ... )
    >>> graph
    <OpGraph 'tiny': 2 ops, 1 edge>

    Attributes
    ----------
    ops, edges
        In the order of the file; plans and solvers do not depend on it.
    capture
        How the graph was captured: entry, mode, args, loss, autocast, torch version, rewrites applied; None if it
        was not captured from a model.
    structure_sha256
        Hash over everything but costs; None if it was not captured from a model.
    known
        A known result for this graph: topology, options, makespan_s, source.

    Raises
    ------
    InputError
        If an id is given twice, an edge ends nowhere or reads an output that does not exist, edges of a tensor
        disagree, or the graph has a cycle.
    """

    ops: tuple[Op, ...]
    edges: tuple[Edge, ...] = ()
    name: str = ""
    source: str = ""
    capture: Mapping[str, Any] | None = None
    structure_sha256: str | None = None
    known: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple_of("graph", "ops", self.ops, Op, "Op"))
        object.__setattr__(self, "edges", tuple_of("graph", "edges", self.edges, Edge, "Edge"))
        expect_text("graph", name=self.name, source=self.source)
        expect_table("graph", optional=True, capture=self.capture, known=self.known, meta=self.meta)
        if not self.ops:
            raise InputError("the graph has no ops; add at least one node")
        if len(self.index) != len(self.ops):
            repeated, _ = Counter(op.id for op in self.ops).most_common(1)[0]
            raise InputError(f"op {repeated!r} is given twice; rename one")
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in self.index:
                    raise InputError(
                        f"edge {edge.source!r} → {edge.target!r} names op {end!r}, which is not there; add it"
                    )
        for _, _, mistake in tensor_mistakes(self.ops, self.edges):
            raise InputError(mistake)
        cycle = cycle_mistake(self.edges)
        if cycle is not None:
            raise InputError(cycle)

    def __repr__(self) -> str:
        count, joined = len(self.ops), len(self.edges)
        ops, edges = "op" if count == 1 else "ops", "edge" if joined == 1 else "edges"
        weights = sum(op.weight_bytes for op in self.ops)
        stored = f", {format_bytes(weights)} of weights" if weights else ""
        return f"<OpGraph {short_name(self.name)}: {count} {ops}, {joined} {edges}{stored}>"

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Op id → position in `ops`."""
        return {op.id: position for position, op in enumerate(self.ops)}

    def op(self, op_id: str) -> Op:
        """The op of this id.

        Raises
        ------
        InputError
            If there is none; names the ops that are called nearly so.
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
        """Op id → the parts of its `output_bytes` with lives of their own: one for each output.

        An output that ends as a gradient is charged to its parameter and counts nothing. Where the sizes of the outputs
        do not add up to `output_bytes`, all outputs are one part.
        """
        return {op.id: tuple(self._parts_of(op)) for op in self.ops if op.output_bytes}

    def _parts_of(self, op: Op) -> Iterator[OutputPart]:
        edges = self.edges_from[op.id]
        charged = {edge.output for edge in edges if self.op(edge.target).kind == "gradient"}
        numbered = dict(enumerate(spec.bytes for spec in op.outputs))
        for sizes in (numbered, {number: size for number, size in numbered.items() if number not in charged}):
            # The second try is for captured graphs, whose gradients are charged to the parameters and not to these
            # outputs.
            if sum(sizes.values()) == op.output_bytes:
                yield from (OutputPart(size, frozenset({number})) for number, size in sizes.items() if size)
                return
        yield OutputPart(op.output_bytes, frozenset({*numbered, *(edge.output for edge in edges)}))

    @cached_property
    def topological_order(self) -> tuple[str, ...]:
        """Op ids, every op after all that it reads; among released ops the file's order decides."""
        missing = {op.id: len(self.edges_into[op.id]) for op in self.ops}
        order = [op.id for op in self.ops if missing[op.id] == 0]
        for done in order:
            for edge in self.edges_from[done]:
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

    def to_frame(self) -> "pandas.DataFrame":
        """A row per op, in the file's order: kind, phase, module, times in seconds, work, and parts of the footprint.

        Times are one column ``time_s``, or one per device type where they differ: ``time_s[V100]``.
        """
        import pandas

        return pandas.DataFrame([_row(op) for op in self.ops])

    def edges_frame(self) -> "pandas.DataFrame":
        """A row per edge: source, target, output, bytes, tensor."""
        import pandas

        names = ("source", "target", "output", "bytes", "tensor")
        return pandas.DataFrame([[getattr(edge, name) for name in names] for edge in self.edges], columns=list(names))

    def _edges_by(self, end: str) -> dict[str, tuple[Edge, ...]]:
        grouped: dict[str, list[Edge]] = {op.id: [] for op in self.ops}
        for edge in self.edges:
            grouped[getattr(edge, end)].append(edge)
        return {op_id: tuple(edges) for op_id, edges in grouped.items()}


def _row(op: Op) -> dict[str, Any]:
    times = op.time_s if isinstance(op.time_s, Mapping) else {"": op.time_s}
    return {
        "op": op.id,
        **{name: getattr(op, name) for name in ("kind", "phase", "module")},
        **{f"time_s[{kind}]" if kind else "time_s": time_s for kind, time_s in times.items()},
        **{name: getattr(op, name) for name in _AMOUNTS},
        "footprint_bytes": op.footprint_bytes,
        "colocate": op.colocate,
    }


def _require_amount(owner: str, name: str, value: float) -> None:
    try:
        holds = 0 <= value <= sys.float_info.max
    except (TypeError, ValueError):
        raise refuse(owner, name, value, "a number") from None
    if not holds:
        raise InputError(f"{owner}: {name} is {value}; it must be a finite number of at least 0")
