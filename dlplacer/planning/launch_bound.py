"""Whether a plan still holds when one process of eager PyTorch issues its ops."""

from dlplacer.core.result import Result
from dlplacer.core.units import format_seconds
from dlplacer.machines.costs.issue import with_issue
from dlplacer.planning.one_device import one_device_s
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
    single_s = one_device_s(plan.graph, eager)
    step_s = issue_s * len(times_s)
    if len(plan.ops) <= _MOST_REPLAYED:
        step_s = replay_plan(plan, plan.graph, eager).makespan_s
    if single_s is None or single_s > step_s * (1 + _COLLAPSE * (speedup - 1)):
        return None
    gain = "one device is best" if single_s <= step_s else f"this plan gains {single_s / step_s:.3f}x"
    return (
        f"launch-bound: issuing an op takes {format_seconds(issue_s)}, its ops "
        f"{format_seconds(sum(times_s) / len(times_s))}; with eager PyTorch {gain}; compiled segments would give "
        f"{speedup:.3f}x if they cost nothing to issue and every op still took as long; --issue eager plans for eager "
        "PyTorch"
    )
