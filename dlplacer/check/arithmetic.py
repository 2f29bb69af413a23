"""The plan's own figures (makespan, lower bound, gap and status) agree with its schedule."""

from collections.abc import Iterator

from dlplacer.check.violation import Violation
from dlplacer.core.plan import Plan

_GAP_TOLERANCE, _NEGLIGIBLE = 1e-6, 1e-4
# The resolution of the solvers, repeated here because this package shares no rule with them.
_LEAST_TICK_S, _MOST_TICKS = 1e-9, 2**30


def makespan(plan: Plan) -> Iterator[Violation]:
    """The makespan is the end of the last op."""
    last_s = max((scheduled.end_s for scheduled in plan.ops), default=0.0)
    if abs(plan.makespan_s - last_s) > plan.tolerance_s:
        yield Violation("makespan", f"the plan says {plan.makespan_s:.9g} s; its last op ends at {last_s:.9g} s")


def bound_and_gap(plan: Plan) -> Iterator[Violation]:
    """The bound is not above the objective; gap = (objective − bound) ÷ objective up to rounding; optimal means gap 0.

    Rounding to ticks hides less than two ticks for every op and edge, and changes the gap by at most 0.01 %.
    """
    slack, value_s, name = plan.tolerance_s, plan.value_s, plan.objective.label
    most_s = 2 * (len(plan.graph.ops) + len(plan.graph.edges)) * _coarsest_tick_s(plan) + slack
    if not 0 <= plan.rounding_s <= most_s:
        yield Violation(
            "rounding", f"the plan says that {plan.rounding_s:.9g} s are hidden; ticks can hide 0 to {most_s:.9g} s"
        )
    if plan.lower_bound_s < 0:
        yield Violation("lower bound", f"{plan.lower_bound_s:.9g} s is below 0, which is always a bound")
    if plan.lower_bound_s > value_s + slack:
        yield Violation("lower bound", f"{plan.lower_bound_s:.9g} s is above the {name} of {value_s:.9g} s")
    true_gap = (value_s - plan.lower_bound_s) / value_s if value_s else 0.0
    hidden = min(plan.rounding_s / value_s, _NEGLIGIBLE) + slack / value_s if value_s else 0.0
    if abs(plan.gap - true_gap) > hidden + _GAP_TOLERANCE:
        yield Violation(
            "gap", f"the plan says {plan.gap:.6g}; {name} and bound give {true_gap:.6g}, rounding hides {hidden:.2g}"
        )
    if plan.status == "optimal" and plan.gap > 0:
        yield Violation("status", f"the plan calls itself optimal with a gap of {plan.gap:.6g}")


def _coarsest_tick_s(plan: Plan) -> float:
    """The larger of 1 ns and horizon ÷ 2^30; the horizon gives every op its longest time and every edge all links."""
    types, links = plan.topology.device_types, plan.topology.links
    slowest_s = sum(max(op.time_on(kind) or 0.0 for kind in types) for op in plan.graph.ops)
    s_per_byte = sum(1 / link.total_bytes_per_s for link in links)
    moved_s = sum(edge.bytes for edge in plan.graph.edges) * s_per_byte
    waited_s = len(plan.graph.edges) * sum(link.latency_s for link in links)
    return max(_LEAST_TICK_S, (slowest_s + moved_s + waited_s) / (_MOST_TICKS - 1))
