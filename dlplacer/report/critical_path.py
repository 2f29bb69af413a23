"""The critical path of a plan: the chain of ops and transfers that makes its step as long as it is."""

from collections import defaultdict
from itertools import pairwise

from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.report.schedule_arcs import ScheduleArc, ScheduleArcs

Step = ScheduledOp | Transfer


def critical_path(plan: Plan, arcs: ScheduleArcs | None = None) -> tuple[Step, ...]:
    """Ops and transfers up to the op that ends last, each starting when the one before it ends.

    Walks back from the end. An op waits for a tensor (its producer here, or the transfer that brings it), for its
    device, or for the barrier at the loss; a transfer for its producer or for a link. Where several end at that moment,
    what took time comes first, then in the order just given. The path begins where nothing ends at the start: at time
    0, or at an op that starts later than it must. Times are compared with the tolerance of `dlplacer.check`.

    Parameters
    ----------
    arcs
        Those of the plan, where they are known already.
    """
    arcs = arcs or ScheduleArcs(plan)
    ended: dict[int, list[ScheduleArc]] = defaultdict(list)
    for arc in arcs.arcs:
        if abs(arc.gap_s) <= plan.tolerance_s and arcs.spans[arc.after][0] > plan.tolerance_s:
            ended[arc.after].append(arc)
    event: int | None = max(range(len(plan.ops)), key=lambda number: plan.ops[number].end_s)
    walked: dict[int, None] = {}
    while event is not None:
        walked[event] = None
        # Ops and transfers without duration end where they start; without this the walk could go round among them.
        before = [arc for arc in ended[event] if arc.before not in walked]
        best = min(before, key=lambda arc: (not _takes_time(arcs, arc.before), arc.why), default=None)
        event = None if best is None else best.before
    steps = [arcs.steps[event] for event in reversed(walked)]
    return (steps[0], *(after for before, after in pairwise(steps) if after is not before))


def _takes_time(arcs: ScheduleArcs, event: int) -> bool:
    start_s, end_s = arcs.spans[event]
    return end_s > start_s
