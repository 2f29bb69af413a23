"""A plan: placement P, start times T and routes C of table 2 of Pal et al. 2019, with the problem that it solves."""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError
from dlplacer.core.expect import short_name
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import OBJECTIVES, Objective, Options
from dlplacer.core.record import Bytes, Filled, Name, Number, OneOf, Record, Seconds, record
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds

STATUSES = ("optimal", "feasible")
Moment = Annotated[float, Number("seconds", at_least=-sys.float_info.max)]
"""A time in a plan in seconds; negative times are allowed, so that `dlplacer.check` can report them."""


@record(frozen=True, slots=True)
class ScheduledOp(Record):
    """An op on its device: P(k, n) = 1 and T(k) = start_s."""

    op: Name
    device: Name
    start_s: Moment
    end_s: Moment


@record(frozen=True, slots=True)
class TransferSegment(Record):
    """The part of a transfer from one device to the next: its links in order, as (from, to) pairs of node names."""

    route: Annotated[tuple[tuple[str, str], ...], Filled()]
    start_s: Moment
    end_s: Moment

    @property
    def label(self) -> str:
        return f"segment over {list(self.route)}"


@record(frozen=True, slots=True)
class Transfer(Record):
    """The transfer of a tensor from the device of its producer, the op `source`, to the device `target`.

    At a device that relays the tensor, one segment ends and the next begins.
    """

    tensor: Name
    source: Name
    target: Name
    bytes: Bytes
    segments: Annotated[tuple[TransferSegment, ...], Filled()]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes on the route, both ends included."""
        return (self.segments[0].route[0][0], *(end for segment in self.segments for _, end in segment.route))

    @property
    def start_s(self) -> float:
        """The time at which the first segment starts."""
        return self.segments[0].start_s

    @property
    def end_s(self) -> float:
        """The time at which the tensor has arrived."""
        return self.segments[-1].end_s


@record(frozen=True, slots=True)
class DeviceMemory(Record):
    """Bytes of a device: capacity (None if unlimited), and peak use under the plan's `memory` option."""

    capacity_bytes: Bytes | None
    peak_bytes: Bytes


@record(frozen=True, repr=False)
class Plan(Shown, Record):
    """A self-contained plan: device and times of every op, route and times of every transfer; `check` validates it.

    >>> plan = dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft").plan
    >>> plan.placement["convolution"]
    'gpu0'
    >>> plan.to_frame()[["op", "device", "kind"]].head(2)
           op device       kind
    0  ...

    Attributes
    ----------
    lower_bound_s
        A value of the objective that no plan can beat.
    gap
        (objective − bound) ÷ objective, computed in ticks unless ticks are too coarse or ops wait for dispatch.
    rounding_s
        Seconds by which the objective exceeds its value in ticks, because times are rounded down; 0 if ticks are exact.
    ops
        In execution order per device.
    period_s
        For throughput and max-load, the largest load of a device or link direction in seconds. In steady state a step
        ends once per period. None for the makespan.
    """

    graph: OpGraph
    topology: Topology
    options: Options
    status: Annotated[str, OneOf(STATUSES)]
    makespan_s: Moment
    lower_bound_s: Moment
    gap: Annotated[float, Number(at_least=-sys.float_info.max)]
    rounding_s: Moment
    method: str
    solve_s: Seconds
    ops: tuple[ScheduledOp, ...]
    transfers: tuple[Transfer, ...] = ()
    memory: Mapping[str, DeviceMemory] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    period_s: Seconds | None = None

    def __post_init__(self) -> None:
        if (self.period_s is None) != self.objective.is_makespan:
            told = f"objective {self.options.objective!r} with period_s {self.period_s}"
            raise InputError(f"the plan has {told}; throughput and max-load have a period, makespan has none")

    @property
    def objective(self) -> Objective:
        """The objective that the plan minimises."""
        return OBJECTIVES[self.options.objective]

    @property
    def value_s(self) -> float:
        """The value of the objective, to which lower bound and gap refer."""
        return float(getattr(self, self.objective.figure))

    def __repr__(self) -> str:
        graph, topology = short_name(self.graph.name), short_name(self.topology.name)
        moved, used = len(self.transfers), len(set(self.placement.values()))
        return (
            f"<Plan of {graph} on {topology}: {self.status}, {self.objective.label} {format_seconds(self.value_s)}, "
            f"gap {100 * self.gap:.2f} %, {len(self.ops)} ops on {used} of {len(self.topology.devices)} devices, "
            f"{moved} transfer{'s' * (moved != 1)}, method {self.method}>"
        )

    @cached_property
    def tolerance_s(self) -> float:
        """The largest difference, in seconds, between times that count as equal."""
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
    def busy_s(self) -> Mapping[str, float]:
        """Device id → seconds during which the device runs ops."""
        busy_s = dict.fromkeys(self.topology.device_index, 0.0)
        for entry in self.ops:
            busy_s[entry.device] += entry.end_s - entry.start_s
        return busy_s

    @cached_property
    def order(self) -> Mapping[str, tuple[str, ...]]:
        """Device id → the ids of its ops in execution order."""
        return {
            device.id: tuple(scheduled.op for scheduled in self.ops if scheduled.device == device.id)
            for device in self.topology.devices
        }


def tolerance_s(topology: Topology, ops: Iterable[ScheduledOp], transfers: Iterable[Transfer]) -> float:
    """Tolerance of times in seconds: 1e-9 × the time of all ops, transfers and issues in series, plus 1e-15."""
    # Only the plan's own durations count, because the step may be so long on a slow, unused device that a billionth of
    # it hides an op. A wrong duration cannot hide itself, because it adds only 1e-9 of its length.
    entries: list[ScheduledOp | Transfer] = [*ops, *transfers]
    issue_s = max((device.dispatch_s or 0.0 for device in topology.devices), default=0.0)
    horizon_s = sum(abs(entry.end_s - entry.start_s) for entry in entries) + len(entries) * issue_s
    # The error of float sums grows with the horizon; the constant lets plans without any time compare equal.
    return (1e-9 * horizon_s if math.isfinite(horizon_s) else 0.0) + 1e-15
