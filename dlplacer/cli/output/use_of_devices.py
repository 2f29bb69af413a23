"""Says where the best plan leaves all devices but one idle."""

from typing import TYPE_CHECKING

from dlplacer.cli.output.verbosity import note
from dlplacer.core.units import format_seconds
from dlplacer.problem.dispatch import dispatch_of

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan


_SAME = 1e-6


def tell_use_of_devices(plan: "Plan", critical_path_s: float | None = None) -> None:
    """Say on stderr that one device is best, if it is of several, and why.

    Parameters
    ----------
    critical_path_s
        The bound of the critical path, where it is known; None works it out where it is asked for.
    """
    working = {entry.device for entry in plan.ops if entry.end_s > entry.start_s}
    if len(plan.topology.devices) < 2 or len(working) != 1:
        return
    proof = "no plan is faster" if plan.status == "optimal" else "no plan that was found is clearly faster"
    note(f"one device is best, {next(iter(working))}: {proof}; {_reason(plan, critical_path_s)}")


def _reason(plan: "Plan", critical_path_s: float | None) -> str:
    chain_s = _critical_path_s(plan) if critical_path_s is None else critical_path_s
    if chain_s >= plan.makespan_s * (1 - _SAME):
        return "its longest chain of ops takes as long by itself, so that there is nothing to do at once"
    # Not what the topology names: a core alone in its process never waits for it.
    dispatch_s = max(dispatch_of(plan.topology).seconds)
    if not dispatch_s:
        return "what its transfers take is more than other devices would save"
    count = sum(entry.end_s > entry.start_s for entry in plan.ops)
    mean_s = sum(entry.end_s - entry.start_s for entry in plan.ops) / count
    return (
        f"its {count} ops take {format_seconds(mean_s)} on average, issuing one {format_seconds(dispatch_s)}, and "
        "a transfer has its latency"
    )


def _critical_path_s(plan: "Plan") -> float:
    from dlplacer.problem.problem import build_problem
    from dlplacer.solvers.bounds.bounds import critical_path
    from dlplacer.solvers.instance.instance import build_instance

    problem = build_problem(plan.graph, plan.topology, plan.options, plan.makespan_s)
    return float(critical_path(build_instance(problem)) * problem.tick_s)
