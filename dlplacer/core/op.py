"""Ops and edges: durations Δ(k), footprints M(k) and bytes D(e) of table 2 of Pal et al. 2019."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from dlplacer.core.record import Bytes, Count, Name, Number, OneOf, Record, record

PHASES = ("forward", "backward", "optimizer")
Times = Annotated[float | Mapping[str, float], Number("seconds", named=True)]


@record(frozen=True, slots=True)
class TensorSpec(Record):
    """One output of an op: shape, dtype as torch prints it (``float32``), and bytes (0 if no op can read it)."""

    shape: tuple[Count, ...]
    dtype: str
    bytes: Bytes

    @property
    def label(self) -> str:
        return f"output of shape {list(self.shape)}"


@record(frozen=True, repr=False)
class Op(Record):
    """A vertex k of the dataflow graph; docs/reference/formats.md explains each field.

    Attributes
    ----------
    time_s
        Δ(k): seconds on every device, or seconds per device type, or None if not yet known.
    weight_bytes, gradient_bytes, state_bytes, output_bytes, workspace_bytes
        The parts of the footprint M(k).
    origin
        Ids of the ops that a rewrite made this op from; empty for an original op.
    colocate
        Name of a group whose ops run on one device; None without a group.
    devices
        Names or types of the devices that may run the op; None allows all.
    attrs
        The data needed to run the op again.
    """

    id: Name
    kind: str
    time_s: Times | None = None
    flops: Annotated[float, Number("flops")] = 0
    bytes_accessed: Annotated[float, Number("bytes")] = 0
    dtype: str | None = None
    outputs: tuple[TensorSpec, ...] = ()
    weight_bytes: Bytes = 0
    gradient_bytes: Bytes = 0
    state_bytes: Bytes = 0
    output_bytes: Bytes = 0
    workspace_bytes: Bytes = 0
    phase: Annotated[str, OneOf(PHASES)] | None = None
    module: str | None = None
    origin: tuple[str, ...] = ()
    colocate: str | None = None
    devices: tuple[str, ...] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def footprint_bytes(self) -> int:
        """M(k) of eq. 13: weight + gradient + state + output + workspace bytes."""
        return self.weight_bytes + self.gradient_bytes + self.state_bytes + self.output_bytes + self.workspace_bytes

    def time_on(self, device_type: str) -> float | None:
        """Δ(k) in seconds on a device of this type, or None if it is unknown."""
        return self.time_s.get(device_type) if isinstance(self.time_s, Mapping) else self.time_s


@record(frozen=True, repr=False)
class Edge(Record):
    """An edge e of the dataflow graph: `target` reads output number `output` of `source`.

    `bytes` is D(e), the bytes sent if the ends are on different devices. Edges of one `tensor` carry the same data and
    agree in bytes; by default each edge has a tensor of its own.
    """

    source: Name
    target: Name
    bytes: Bytes
    output: Count = 0
    tensor: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tensor:
            object.__setattr__(self, "tensor", f"{self.source}:{self.output}->{self.target}")

    @property
    def label(self) -> str:
        return f"edge {self.source!r} → {self.target!r}"


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Outputs of an op that are freed together: their total bytes and their numbers."""

    bytes: int
    outputs: frozenset[int]
