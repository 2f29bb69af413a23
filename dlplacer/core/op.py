"""Ops and edges: durations Δ(k), footprints M(k) and bytes D(e) of the paper's Table 2."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from dlplacer.core.abilities import Brief
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect_text, expect_whole, refuse, tuple_of

_TEXT_OR_NONE, _NUMBERS = {str, type(None)}, {int, float}
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
_amounts_of = attrgetter(*_AMOUNTS)


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
        if not _TEXT_OR_NONE.issuperset(map(type, (self.dtype, self.module, self.colocate))):
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
            if time_s is not None and not (type(time_s) is float and 0 <= time_s <= sys.float_info.max):
                label = f"time_s[{device_type}]" if device_type else "time_s"
                _require_amount(f"op {self.id!r}", label, time_s)
        amounts = _amounts_of(self)
        # All at once: a graph may have a million ops.
        if not (_NUMBERS.issuperset(map(type, amounts)) and min(amounts) >= 0 and sum(amounts) <= sys.float_info.max):
            for name, value in zip(_AMOUNTS, amounts, strict=True):
                _require_amount(f"op {self.id!r}", name, value)

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
        if not (type(self.bytes) is int and 0 <= self.bytes <= sys.float_info.max and self.output >= 0):
            for name in ("bytes", "output"):
                _require_amount(f"edge {self.source!r} → {self.target!r}", name, getattr(self, name))
        if not self.tensor:
            object.__setattr__(self, "tensor", f"{self.source}:{self.output}->{self.target}")


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Outputs of an op that live and die together: their bytes, and the numbers of the outputs."""

    bytes: int
    outputs: frozenset[int]


def _require_amount(owner: str, name: str, value: float) -> None:
    try:
        holds = 0 <= value <= sys.float_info.max
    except (TypeError, ValueError):
        raise refuse(owner, name, value, "a number") from None
    if not holds:
        raise InputError(f"{owner}: {name} is {value}; it must be a finite number of at least 0")
