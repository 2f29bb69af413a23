"""A plan: placement P, start times T and routes C of the paper's Table 2, with the problem that it answers."""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dlplacer.core import table
from dlplacer.core.abilities import Saved, Shown
from dlplacer.core.errors import InputError
from dlplacer.core.expect import (
    brief_number,
    expect,
    expect_figure,
    expect_number,
    expect_table,
    expect_text,
    expect_whole,
    refuse,
    short_name,
    tuple_of,
)
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds

if TYPE_CHECKING:
    import pandas

STATUSES = ("optimal", "feasible")


@dataclass(frozen=True, slots=True)
class ScheduledOp:
    """An op on its device: P(k, n) = 1 and T(k) = start_s."""

    op: str
    device: str
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not type(self.op) is type(self.device) is str:
            expect_text("scheduled op", op=self.op, device=self.device)
        if not _are_finite(self.start_s, self.end_s):
            _require_finite(f"op {self.op!r}", start_s=self.start_s, end_s=self.end_s)


@dataclass(frozen=True, slots=True)
class TransferSegment:
    """A route segment of a transfer from one device to the next: links in order, as (from, to) pairs of node names."""

    route: tuple[tuple[str, str], ...]
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if type(self.route) is not tuple:
            object.__setattr__(self, "route", tuple_of("segment", "route", self.route, tuple, "(from, to) pairs"))
        if not self.route:
            raise InputError("a segment has no links; name the links that it travels")
        for hop in self.route:
            if type(hop) is not tuple or len(hop) != 2 or not type(hop[0]) is type(hop[1]) is str:
                raise refuse("segment", "a link of its route", hop, "a (from, to) pair of node names")
        if not _are_finite(self.start_s, self.end_s):
            _require_finite(f"segment over {list(self.route)}", start_s=self.start_s, end_s=self.end_s)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor on its way from the device of its producer to another device.

    Attributes
    ----------
    tensor
        Name of the tensor, as on the edges that it serves.
    source
        The op that produces it.
    target
        The device that receives it.
    segments
        In order; where a device relays, one segment ends and the next begins.
    """

    tensor: str
    source: str
    target: str
    bytes: int
    segments: tuple[TransferSegment, ...]

    def __post_init__(self) -> None:
        if not type(self.tensor) is type(self.source) is type(self.target) is str:
            expect_text("transfer", tensor=self.tensor, source=self.source, target=self.target)
        owner = f"transfer of {self.tensor!r}"
        if type(self.bytes) is not int or self.bytes < 0:
            expect_whole(owner, bytes=self.bytes)
            _require_amount(owner, bytes=self.bytes)
        segments = tuple_of(owner, "segments", self.segments, TransferSegment, "TransferSegment")
        object.__setattr__(self, "segments", segments)
        if not self.segments:
            raise InputError(f"the transfer of {self.tensor!r} to {self.target!r} has no segments; give it a route")

    @property
    def start_s(self) -> float:
        """When the first segment starts."""
        return self.segments[0].start_s

    @property
    def end_s(self) -> float:
        """When the tensor has arrived."""
        return self.segments[-1].end_s


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Capacity (None if unlimited) and peak use of a device under the plan's memory rule."""

    capacity_bytes: int | None
    peak_bytes: int

    def __post_init__(self) -> None:
        expect_number("device memory", optional=True, capacity_bytes=self.capacity_bytes)
        expect_whole("device memory", peak_bytes=self.peak_bytes)
        _require_amount("device memory", capacity_bytes=self.capacity_bytes or 0, peak_bytes=self.peak_bytes)


@dataclass(frozen=True, repr=False)
class Plan(Saved, Shown):
    """Where and when every op runs, self-contained. Whether it is right is for `dlplacer.check` to say.

    >>> import dlplacer as dp
    >>> plan = dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft").plan
    >>> plan.placement["convolution"]
    'gpu0'
    >>> plan.to_frame()[["op", "device", "kind"]].head(2)
           op device       kind
    0  ...

    Attributes
    ----------
    status
        ``optimal`` or ``feasible``.
    makespan_s, lower_bound_s
        Step time of the plan, and a time that no plan can beat.
    gap
        (makespan − bound) ÷ makespan of the problem in ticks.
    rounding_s
        What rounding to ticks may hide between makespan and bound; 0 if ticks are exact.
    ops
        In execution order per device.

    Raises
    ------
    InputError
        If the status is not one of `STATUSES`, or a figure is not finite.
    """

    graph: OpGraph
    topology: Topology
    options: Options
    status: str
    makespan_s: float
    lower_bound_s: float
    gap: float
    rounding_s: float
    method: str
    solve_s: float
    ops: tuple[ScheduledOp, ...]
    transfers: tuple[Transfer, ...] = ()
    memory: Mapping[str, DeviceMemory] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in (("graph", OpGraph), ("topology", Topology), ("options", Options)):
            expect("plan", name, getattr(self, name), kind, f"an object of class {kind.__name__}")
        expect_text("plan", method=self.method)
        for name, entry in (("ops", ScheduledOp), ("transfers", Transfer)):
            object.__setattr__(self, name, tuple_of("plan", name, getattr(self, name), entry, entry.__name__))
        expect_table("plan", memory=self.memory, provenance=self.provenance, meta=self.meta)
        for name, memory in self.memory.items():
            expect("plan", f"memory[{name!r}]", memory, DeviceMemory, "an object of class DeviceMemory")
        if self.status not in STATUSES:
            raise InputError(f"the plan's status is {self.status!r}; use one of {', '.join(STATUSES)}")
        figures = ("makespan_s", "lower_bound_s", "gap", "rounding_s", "solve_s")
        _require_finite("the plan", **{name: getattr(self, name) for name in figures})
        _require_amount("the plan", solve_s=self.solve_s)

    def __repr__(self) -> str:
        graph, topology = short_name(self.graph.name), short_name(self.topology.name)
        moved, used = len(self.transfers), len(set(self.placement.values()))
        return (
            f"<Plan of {graph} on {topology}: {self.status}, {format_seconds(self.makespan_s)}, "
            f"gap {100 * self.gap:.2f} %, {len(self.ops)} ops on {used} of {len(self.topology.devices)} devices, "
            f"{moved} transfer{'s' * (moved != 1)}, method {self.method}>"
        )

    @cached_property
    def tolerance_s(self) -> float:
        """By how much times may differ and still count as equal: see `tolerance_s`."""
        return tolerance_s(self.topology, self.ops, self.transfers)

    @cached_property
    def placement(self) -> Mapping[str, str]:
        """Op id → device id."""
        return {scheduled.op: scheduled.device for scheduled in self.ops}

    @cached_property
    def scheduled(self) -> Mapping[str, ScheduledOp]:
        """Op id → its entry in `ops`."""
        return {scheduled.op: scheduled for scheduled in self.ops}

    @cached_property
    def order(self) -> Mapping[str, tuple[str, ...]]:
        """Device id → the ids of its ops in execution order."""
        return {
            device.id: tuple(scheduled.op for scheduled in self.ops if scheduled.device == device.id)
            for device in self.topology.devices
        }

    def to_frame(self) -> "pandas.DataFrame":
        """The schedule: a row per op, by start, with device, times in seconds, kind, phase and module."""
        return table.schedule(self).to_frame()

    def transfers_frame(self) -> "pandas.DataFrame":
        """The transfers: a row per tensor and device that it goes to, by start; times in seconds, the route as text."""
        return table.transfers(self).to_frame()

    def devices_frame(self) -> "pandas.DataFrame":
        """A row per device: ops, seconds busy and idle in the step, peak and capacity in bytes (None if unlimited)."""
        return table.device_use(self).to_frame()


def tolerance_s(topology: Topology, ops: Iterable[ScheduledOp], transfers: Iterable[Transfer]) -> float:
    """1e-9 × the horizon: all ops, transfers and issues, one after another."""
    # What the plan takes, not what ops would take elsewhere: on a slow device that nobody uses a step may be so long
    # that its billionth hides an op. Durations that are wrong cannot hide themselves so: n of them add n × 1e-9.
    entries: list[ScheduledOp | Transfer] = [*ops, *transfers]
    issue_s = max((device.dispatch_s or 0.0 for device in topology.devices), default=0.0)
    horizon_s = sum(abs(entry.end_s - entry.start_s) for entry in entries) + len(entries) * issue_s
    # Relative to the horizon, as sums of that many floats err; the constant lets plans without any time compare equal.
    return (1e-9 * horizon_s if math.isfinite(horizon_s) else 0.0) + 1e-15


def _are_finite(start_s: float, end_s: float) -> bool:
    """True for two finite floats: a quick answer, as a plan may have a million."""
    return type(start_s) is type(end_s) is float and math.isfinite(start_s) and math.isfinite(end_s)


def _require_finite(owner: str, **figures: float) -> None:
    for name, value in figures.items():
        if type(value) is not float:
            expect_figure(owner, name, value)
        if not -sys.float_info.max <= value <= sys.float_info.max:
            raise InputError(f"{owner}: {name} is {brief_number(value)}; it must be finite")


def _require_amount(owner: str, **amounts: float) -> None:
    for name, value in amounts.items():
        if not 0 <= value <= sys.float_info.max:
            raise InputError(f"{owner}: {name} is {brief_number(value)}; it must be finite and at least 0")
