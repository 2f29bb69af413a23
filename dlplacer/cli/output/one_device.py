"""Says where the best plan leaves all devices but one idle."""

from typing import TYPE_CHECKING

from dlplacer.cli.output.verbosity import note
from dlplacer.core.units import format_seconds
from dlplacer.problem.dispatch import dispatch_of

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan


def tell_one_device(plan: "Plan") -> None:
    """Say on stderr that one device is best, if it is of several, and why more would not help."""
    working = {entry.device for entry in plan.ops if entry.end_s > entry.start_s}
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
