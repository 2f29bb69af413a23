"""The step on one device, with which a plan on several devices is compared."""

from dataclasses import replace
from math import inf

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Topology
from dlplacer.core.units import format_seconds
from dlplacer.machines.costs.roofline import with_issue
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.result import Result
from dlplacer.problem.dispatch import dispatch_of
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import replay, replay_plan
from dlplacer.solvers.bounds import critical_path
from dlplacer.solvers.heuristics.single_device import singles
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import ProblemSchedule

_SAME = 1e-6
_NOISE = 0.05
"""Relative error of planned steps with short ops."""


def single_device_s(problem: Problem) -> float | None:
    """Seconds of all ops on the best single device, without the user's constraints; None if the ops fit on none."""
    free = problem
    if problem.graph.constraints:
        unpinned = replace(problem.graph, constraints=Constraints())
        try:
            free = build_problem(with_times(unpinned, problem.topology), problem.topology, problem.options)
        except InputError:
            # A pinned op may have a time only on its own device.
            return None
    found = singles(free)
    if dispatch_of(free.topology).delays:
        return min((replayed_s(free, single) for single in found), default=None)
    types = {free.topology.devices[single.device[0]].type for single in found}
    return min((sum(op.time_on(name) or 0.0 for op in free.graph.ops) for name in types), default=None)


def replayed_s(problem: Problem, schedule: ProblemSchedule) -> float:
    """Makespan in seconds of a schedule whose ops wait for the processes that issue them."""
    return max(entry.end_s for entry in replay(problem, schedule.device, schedule.order)[0])


def one_device_s(graph: OpGraph, topology: Topology) -> float | None:
    """Seconds of the step on the best single device, issues included; None if no device holds all footprints."""
    # Devices that differ only in name have the same time, and large graphs take a second per device.
    unlike = {(each.type, each.memory_bytes, each.dispatch_s, each.asynchronous): each for each in topology.devices}
    alone_s = min(_alone_s(graph, device) for device in unlike.values())
    return None if alone_s == inf else alone_s


def one_device_note(plan: Plan) -> str | None:
    """A note if one device is as fast as a plan on several, within noise, and no op has fixed devices; else None."""
    working = {entry.device for entry in plan.ops if entry.end_s > entry.start_s}
    alone_s = one_device_s(plan.graph, plan.topology)
    if len(working) < 2 or _is_held(plan) or alone_s is None or alone_s > (1 + _NOISE) * plan.makespan_s:
        return None
    return (
        f"one device is within the noise of this plan: {format_seconds(alone_s)} a step alone, "
        f"{format_seconds(plan.makespan_s)} on {len(working)}; prefer one unless the run says otherwise"
    )


def _is_held(plan: Plan) -> bool:
    return bool(plan.graph.constraints.pins) or any(op.devices for op in plan.graph.ops)


def one_device_is_best(plan: Plan, critical_path_s: float | None = None) -> str | None:
    """A note that says why one device is best, if the plan uses one of several devices; else None."""
    working = {entry.device for entry in plan.ops if entry.end_s > entry.start_s}
    if len(plan.topology.devices) < 2 or len(working) != 1 or _is_held(plan):
        return None
    proof = "no plan is faster" if plan.status == "optimal" else "no plan that was found is clearly faster"
    if critical_path_s is None:
        problem = build_problem(plan.graph, plan.topology, plan.options, plan.makespan_s)
        critical_path_s = float(critical_path(build_instance(problem)) * problem.tick_s)
    times_s = [entry.end_s - entry.start_s for entry in plan.ops if entry.end_s > entry.start_s]
    # The effective dispatch times, because a core alone in its process never waits for it.
    dispatch_s = max(dispatch_of(plan.topology).seconds)
    if critical_path_s >= plan.makespan_s * (1 - _SAME):
        reason = "its longest chain of ops takes as long by itself, so nothing can run in parallel"
    elif not dispatch_s:
        reason = "transfers would take longer than other devices would save"
    else:
        reason = (
            f"its {len(times_s)} ops take {format_seconds(sum(times_s) / len(times_s))} on average, issuing one takes "
            f"{format_seconds(dispatch_s)}, and every transfer adds latency"
        )
    return f"one device is best, {next(iter(working))}: {proof}; {reason}. Run the model there unchanged"


def _alone_s(graph: OpGraph, device: Device) -> float:
    """Seconds of all ops in series, each after its process has issued it; infinite if the device cannot run all."""
    footprint_bytes = sum(op.footprint_bytes for op in graph.ops)
    if any(op.time_on(device.type) is None for op in graph.ops) or (
        device.memory_bytes is not None and footprint_bytes > device.memory_bytes
    ):
        return inf
    dispatch_s = (device.dispatch_s or 0.0) if device.asynchronous else 0.0
    issued_s = end_s = 0.0
    for name in graph.topological_order:
        time_s = graph.op(name).time_on(device.type) or 0.0
        issued_s += dispatch_s if time_s else 0.0
        end_s = max(end_s, issued_s) + time_s
    return end_s


_MOST_REPLAYED = 10_000
"""Up to this many ops the plan is replayed, in about a second; beyond that the sum of its issues bounds its step."""

_COLLAPSE = 0.5
"""If less than this share of the gain over one device remains with eager issue, the user gets a note."""


def launch_note(result: Result) -> str | None:
    """A note if eager PyTorch loses at least half of the plan's gain over one device; else None."""
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
