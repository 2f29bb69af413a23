"""Says where the best plan leaves all devices but one idle, or makes processes of cores."""

from typing import TYPE_CHECKING

from dlplacer.cli.output.verbosity import note
from dlplacer.core.units import format_seconds
from dlplacer.problem.as_processes import are_processes
from dlplacer.problem.dispatch import dispatch_of

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan


def tell_use_of_devices(plan: "Plan") -> None:
    """Say on stderr that one device is best, if it is of several, and why; or that the cores are to be processes."""
    working = {entry.device for entry in plan.ops if entry.end_s > entry.start_s}
    if len(working) > 1 and are_processes(plan.topology):
        note("the plan is for cores as processes of their own, as --processes auto tries and on demands")
    if len(plan.topology.devices) < 2 or len(working) != 1:
        return
    # Not what the topology names: a core alone in its process never waits for it.
    dispatch_s = max(dispatch_of(plan.topology).seconds)
    reason = "what its transfers take is more than other devices would save"
    if dispatch_s:
        count = sum(entry.end_s > entry.start_s for entry in plan.ops)
        mean_s = sum(entry.end_s - entry.start_s for entry in plan.ops) / count
        reason = (
            f"its {count} ops take {format_seconds(mean_s)} on average, issuing one {format_seconds(dispatch_s)}, and "
            "a transfer has its latency"
        )
    proof = "no plan is faster" if plan.status == "optimal" else "no plan that was found is clearly faster"
    note(f"one device is best, {next(iter(working))}: {proof}; {reason}")
