"""Whether a plan still holds when one process of eager PyTorch issues its ops."""

from dlplacer.core.result import Result
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.machines.costs.issue import with_issue
from dlplacer.problem.simulate import replay_plan

_MOST_REPLAYED = 10_000
"""Ops up to which the plan is replayed, in about a second; beyond, the sum of its issues bounds its step."""

_COLLAPSE = 0.5
"""Share of the gain over one device that must remain under eager issue, else the user is told."""


def launch_note(result: Result) -> str | None:
    """A sentence if eager PyTorch would change the answer: one device is best, or most of the gain is lost."""
    plan, speedup = result.plan, result.speedup
    eager = with_issue(plan.topology, "eager")
    if eager == plan.topology or len(set(plan.placement.values())) < 2 or speedup is None or speedup <= 1:
        return None
    issue_s = max(device.dispatch_s or 0.0 for device in eager.devices)
    times_s = [entry.end_s - entry.start_s for entry in plan.ops if entry.end_s > entry.start_s]
    single_s = _single_device_s(result, eager)
    step_s = issue_s * (len(times_s) + 2 * len(plan.transfers))
    if len(plan.ops) <= _MOST_REPLAYED:
        step_s = replay_plan(plan, plan.graph, eager).makespan_s
    if single_s > step_s * (1 + _COLLAPSE * (speedup - 1)):
        return None
    gain = "one device is best" if single_s <= step_s else f"this plan gains {single_s / step_s:.3f}x"
    return (
        f"launch-bound: issuing an op takes {format_seconds(issue_s)}, its ops "
        f"{format_seconds(sum(times_s) / len(times_s))}; with eager PyTorch {gain}, with compiled segments this plan "
        f"gains {speedup:.3f}x; --issue eager plans for the former"
    )


def _single_device_s(result: Result, eager: Topology) -> float:
    """Seconds of the step on the best single device, whose process issues each op ahead of it."""
    graph, best_s = result.plan.graph, float("inf")
    for device in eager.devices:
        times_s = [op.time_on(device.type) for op in map(graph.op, graph.topological_order)]
        known_s = [time_s for time_s in times_s if time_s is not None]
        # A device that does not hold the model is none of the best without issue costs.
        if len(known_s) < len(times_s) or sum(known_s) < (1 - 1e-9) * (result.single_device_s or 0.0):
            continue
        issued_s = end_s = 0.0
        for time_s in known_s:
            issued_s += (device.dispatch_s or 0.0) if time_s else 0.0
            end_s = max(end_s, issued_s) + time_s
        best_s = min(best_s, end_s)
    return best_s
