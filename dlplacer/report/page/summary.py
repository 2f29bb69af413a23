"""The figures of a plan that its pictures and its page quote."""

from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds


def serial_s(plan: Plan) -> float:
    """All ops one after another on the device type that is fastest for them together.

    Where every type lacks a time for some op, the sum of the times in the plan.
    """
    totals = []
    for device_type in plan.topology.device_types:
        times = [op.time_on(device_type) for op in plan.graph.ops]
        known = [time_s for time_s in times if time_s is not None]
        if len(known) == len(times):
            totals.append(sum(known))
    return min(totals, default=sum(entry.end_s - entry.start_s for entry in plan.ops))


def busy_s(plan: Plan) -> dict[str, float]:
    """Device → the time in which it runs ops."""
    busy = dict.fromkeys(plan.topology.device_index, 0.0)
    for entry in plan.ops:
        busy[entry.device] += entry.end_s - entry.start_s
    return busy


def speedup(plan: Plan) -> float | None:
    """Serial time ÷ makespan; None for a plan that takes no time."""
    return serial_s(plan) / plan.makespan_s if plan.makespan_s else None


def headline(plan: Plan) -> str:
    """What was planned: graph, machine and step time."""
    graph, machine = plan.graph.name or "graph", plan.topology.name or f"{len(plan.topology.devices)} devices"
    return f"{graph} on {machine}: {format_seconds(plan.makespan_s)} per step"


def verdict(plan: Plan) -> str:
    """How good the plan is: status, lower bound, gap and speedup."""
    parts = [plan.status, f"lower bound {format_seconds(plan.lower_bound_s)}", f"gap {100 * plan.gap:.2g} %"]
    faster = speedup(plan)
    if faster is not None:
        parts.append(f"speedup {faster:.3g}× over the serial time of {format_seconds(serial_s(plan))}")
    return " · ".join(parts)
