"""The causes of a plan's step time: critical path, limit of the lower bound, idle devices, longest transfers."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import fsum
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.units import format_seconds
from dlplacer.planning.what_if import Elsewhere, WhatWouldHelp
from dlplacer.problem.dispatch import dispatch_of, least_step_s
from dlplacer.problem.problem import build_problem
from dlplacer.report.critical_path import PathPart, critical_path
from dlplacer.solvers.bounds import critical_path as longest_path
from dlplacer.solvers.bounds import whole_area
from dlplacer.solvers.instance.instance import build_instance

_LISTED = 10
_SAME = 1e-6

REASONS = {
    "critical path": "the longest chain of ops and transfers, each at its fastest; split its ops to lower the bound",
    "work": "all work, shared by all devices without idle time; only more or faster devices lower the bound",
    "dispatch": "processes issue ops one by one; fuse ops, or use larger batches or more processes, to lower the bound",
}
"""Limit of the lower bound → its meaning and its remedy."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """The number of ops of a device, and its busy, idle and critical-path seconds in the step."""

    device: str
    ops: int
    busy_s: float
    idle_s: float
    on_path_s: float


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """The causes of a plan's step time, in seconds; docs/reference/printed.md explains each field.

    `limits_s`: a key of `REASONS` → its lower bound, computed anew; `limited_by` is the key of the largest bound.
    `stated_bound_s` is the bound in the plan, which a solver may have proved and a file may misstate. `elsewhere` and
    `what_would_help` are the results of solving again, if that was requested.
    """

    limits_s: Mapping[str, float]
    limited_by: str
    stated_bound_s: float
    parts: tuple[PathPart, ...]
    path_ops_s: float
    path_transfers_s: float
    path_waits_s: float
    path_kinds_s: Mapping[str, float]
    devices: tuple[DeviceShare, ...]
    transfers: tuple[Transfer, ...]
    elsewhere: tuple[Elsewhere, ...] = ()
    what_would_help: WhatWouldHelp | None = None

    def __repr__(self) -> str:
        return (
            f"<Explanation: limited by {self.limited_by}, at least {format_seconds(max(self.limits_s.values()))}; "
            f"critical path of {len(self.parts)} steps>"
        )

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer explain --json`` prints."""
        steps = []
        for part in self.parts:
            step = part.step
            named = {"op": step.op} if isinstance(step, ScheduledOp) else {"tensor": step.tensor}
            steps.append({**named, "start_s": step.start_s, "end_s": step.end_s, "on_path_s": part.time_s})
        transfers = [
            {"tensor": sent.tensor, "target": sent.target, "bytes": sent.bytes, "time_s": sent.end_s - sent.start_s}
            for sent in self.transfers
        ]
        figures = {**vars(self), "devices": [asdict(share) for share in self.devices], "transfers": transfers}
        moved, helping = figures.pop("elsewhere"), figures.pop("what_would_help")
        del figures["parts"]
        figures |= {"path": steps} | ({"elsewhere": [asdict(one) for one in moved]} if moved else {})
        return figures | ({} if helping is None else {"what_would_help": helping.to_dict()})


def explain(plan: Plan) -> Explanation:
    """The explanation of a plan, without solving again."""
    plan.options.require_makespan("explain")
    problem = build_problem(plan.graph, plan.topology, plan.options, plan.makespan_s)
    dispatch = dispatch_of(plan.topology)
    instance, tick_s = build_instance(problem), float(problem.tick_s)
    limits_s = {"critical path": longest_path(instance) * tick_s, "work": whole_area(instance) * tick_s}
    limits_s |= {"dispatch": least_step_s(problem, dispatch)} if dispatch.delays else {}
    parts = critical_path(plan)
    ops_s = fsum(part.time_s for part in parts if isinstance(part.step, ScheduledOp))
    transfers_s = fsum(part.time_s for part in parts if isinstance(part.step, Transfer))
    kinds: dict[str, float] = defaultdict(float)
    for part in parts:
        if isinstance(part.step, ScheduledOp):
            kinds[plan.graph.op(part.step.op).kind] += part.time_s
    return Explanation(
        limits_s=limits_s,
        # The first limit that no other limit exceeds by more than rounding.
        limited_by=next(name for name, limit in limits_s.items() if limit >= max(limits_s.values()) * (1 - _SAME)),
        stated_bound_s=plan.lower_bound_s,
        parts=parts,
        path_ops_s=ops_s,
        path_transfers_s=transfers_s,
        path_waits_s=max(0.0, plan.makespan_s - ops_s - transfers_s),
        path_kinds_s=dict(sorted(kinds.items(), key=lambda entry: -entry[1])),
        devices=tuple(_share(plan, device.id, parts) for device in plan.topology.devices),
        transfers=tuple(sorted(plan.transfers, key=lambda sent: sent.start_s - sent.end_s)[:_LISTED]),
    )


def _share(plan: Plan, device: str, parts: tuple[PathPart, ...]) -> DeviceShare:
    mine = [entry for entry in plan.ops if entry.device == device]
    busy_s = plan.busy_s[device]
    on_path_s = fsum(part.time_s for part in parts if isinstance(part.step, ScheduledOp) and part.step.device == device)
    return DeviceShare(device, len(mine), busy_s, max(0.0, plan.makespan_s - busy_s), on_path_s)
