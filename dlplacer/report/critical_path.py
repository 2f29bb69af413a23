"""The critical path of a plan: the chain of ops and transfers that makes its step as long as it is."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from math import inf

from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.problem.dispatch import dispatch_of
from dlplacer.report.schedule_arcs import ScheduleArc, ScheduleArcs

Step = ScheduledOp | Transfer


@dataclass(frozen=True, slots=True)
class PathPart:
    """A step of the critical path, and from when to when the path runs through it.

    An op is on it as long as it runs. A transfer may be on it for a shorter time: it may wait on its way for a link,
    or leave one before it arrives.
    """

    step: Step
    begin_s: float
    end_s: float

    @property
    def time_s(self) -> float:
        """How much of the step's length is this part."""
        return self.end_s - self.begin_s


def critical_path(plan: Plan, arcs: ScheduleArcs | None = None) -> tuple[Step, ...]:
    """Ops and transfers up to the op that ends last, each starting when the one before it ends.

    A transfer that waits for a link on its way starts earlier, and one that frees a link on its way ends later:
    `critical_parts` says how long each is on the path.

    Walks back from the end. An op waits for a tensor (its producer here, or the transfer that brings it), for its
    device, or for the barrier at the loss; a transfer for its producer or for a link. Where several end at that moment,
    what took time comes first, then in the order just given. The path begins where nothing ends at the start: at time
    0, or at an op that starts later than it must. Where issuing ops and handing tensors over delays them, what ended
    last comes before, and the time between is on no step. Times are compared with the tolerance of `dlplacer.check`.

    Parameters
    ----------
    arcs
        Those of the plan, where they are known already.
    """
    return tuple(part.step for part in critical_parts(plan, arcs))


def critical_parts(plan: Plan, arcs: ScheduleArcs | None = None) -> tuple[PathPart, ...]:
    """The steps of `critical_path` with their times on it.

    They follow each other without overlap, and without gap but for what waits for the processes that issue it.
    """
    arcs = arcs or ScheduleArcs(plan)
    into: dict[int, list[ScheduleArc]] = defaultdict(list)
    for arc in arcs.arcs:
        if arcs.spans[arc.after][0] > plan.tolerance_s:
            into[arc.after].append(arc)
    is_delayed = dispatch_of(plan.topology).delays
    event = max(range(len(plan.ops)), key=lambda number: plan.ops[number].end_s)
    walked = {event}
    found, until_s = [], arcs.spans[event][1]
    while True:
        # Ops and transfers without duration end where they start; without this the walk could go round among them.
        before = [arc for arc in into[event] if arc.before not in walked]
        best = _last_ended(arcs, before, inf if is_delayed else plan.tolerance_s)
        if best is None:
            found.append(PathPart(arcs.steps[event], min(until_s, arcs.spans[event][0]), until_s))
            return _joined(found[::-1])
        # A transfer may wait for its last link and make another wait for its first: it is on the path for no time then.
        begin_s = min(until_s, best.freed_s + (best.gap_s if best.gap_s > plan.tolerance_s else 0.0))
        found.append(PathPart(arcs.steps[event], begin_s, until_s))
        event, until_s = best.before, min(begin_s, best.freed_s)
        walked.add(event)


def _last_ended(arcs: ScheduleArcs, before: Iterable[ScheduleArc], longest_gap_s: float) -> ScheduleArc | None:
    """The arc from what ended last, at most this long before; of several that end together from what took time."""
    tolerance_s = arcs.plan.tolerance_s

    def rank(arc: ScheduleArc) -> tuple[float, bool, int]:
        return max(abs(arc.gap_s), tolerance_s), not _takes_time(arcs, arc.before), arc.why

    # What ends at 0 only stands there: the path begins with what waits longer.
    near = (arc for arc in before if abs(arc.gap_s) <= (longest_gap_s if arc.freed_s > tolerance_s else tolerance_s))
    return min(near, key=rank, default=None)


def _joined(parts: list[PathPart]) -> tuple[PathPart, ...]:
    """Segments of one transfer that follow each other are one step."""
    runs = (list(run) for _, run in groupby(parts, key=lambda part: id(part.step)))
    return tuple(PathPart(run[0].step, run[0].begin_s, run[-1].end_s) for run in runs)


def _takes_time(arcs: ScheduleArcs, event: int) -> bool:
    start_s, end_s = arcs.spans[event]
    return end_s > start_s
