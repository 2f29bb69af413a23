"""Short texts about a plan for its pictures and its page."""

from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.planning.one_device import one_device_s, single_device_s
from dlplacer.planning.result import FITS_NONE
from dlplacer.problem.problem import build_problem


def speedup_text(plan: Plan) -> str | None:
    """The speedup over the best single device as a text, like `Result.speedup`; None for a plan that takes no time."""
    needed_bytes = sum(op.footprint_bytes for op in plan.graph.ops)
    if all(device.memory_bytes is None or needed_bytes <= device.memory_bytes for device in plan.topology.devices):
        alone_s = one_device_s(plan.graph, plan.topology)
    else:
        # Ops that are too large together may fit over time, which only the problem can decide.
        alone_s = single_device_s(build_problem(plan.graph, plan.topology, plan.options))
    if alone_s is None:
        return FITS_NONE
    return f"{alone_s / plan.value_s:.4g}× over the best single device" if plan.value_s else None


def subject(plan: Plan) -> str:
    """The names of a plan's graph and machine."""
    return f"{plan.graph.name or 'graph'} on {plan.topology.name or f'{len(plan.topology.devices)} devices'}"


def headline(plan: Plan) -> str:
    """One line with graph, machine and step time."""
    each = "per step" if plan.objective.is_makespan else "per step in steady state"
    return f"{subject(plan)}: {format_seconds(plan.value_s)} {each}"


def verdict(plan: Plan) -> str:
    """The quality of the plan: status, lower bound, gap and speedup."""
    parts = [plan.status, f"lower bound {format_seconds(plan.lower_bound_s)}", f"gap {100 * plan.gap:.2g} %"]
    faster = speedup_text(plan)
    if faster is not None:
        parts.append(faster if faster == FITS_NONE else f"speedup {faster}")
    return " · ".join(parts)
