"""Waits between the ops and transfers of a plan, and its critical path."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import inf

from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.problem.dispatch import dispatch_of
from dlplacer.report.link_use import link_uses

INPUT, TRANSFER, DEVICE, BARRIER, PRODUCER, RELAY, LINK = range(7)
"""Reasons why an event waits for another; if several waits end together, the first of these reasons is reported."""


@dataclass(frozen=True, slots=True)
class ScheduleArc:
    """Event `after` cannot start before event `before` has ended, for the reason `why`.

    `gap_s` is the seconds between the two; it is negative only in a recorded step, from clock errors. `freed_s` is the
    time at which `before` releases `after`: the end of `before`, or of its use of a link.
    """

    before: int
    after: int
    gap_s: float
    why: int
    freed_s: float


class ScheduleArcs:
    """The precedences of a plan with its placement, orders and routes fixed.

    Events are numbered: first ``plan.ops``, then the segments of ``plan.transfers``, transfer by transfer. In a plan
    without transfers, such as a recorded step, an op waits directly for producers on other devices. `spans`: [event] →
    start and end in seconds. `steps`: [event] → the op, or the transfer of which it is a segment. `first_segment`:
    [transfer] → the event of its first segment; the last entry is the number of events.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.op_event = {entry.op: event for event, entry in enumerate(plan.ops)}
        self.spans = [(entry.start_s, entry.end_s) for entry in plan.ops]
        self.steps: list[ScheduledOp | Transfer] = list(plan.ops)
        self.first_segment = [len(self.spans)]
        for sent in plan.transfers:
            self.spans += [(part.start_s, part.end_s) for part in sent.segments]
            self.steps += [sent] * len(sent.segments)
            self.first_segment.append(len(self.spans))

    @cached_property
    def arcs(self) -> tuple[ScheduleArc, ...]:
        """All arcs; on a device or link direction, arcs join successive events."""
        return (*self._to_ops(), *self._on_devices(), *self._from_barrier(), *self._of_transfers(), *self._on_links())

    @cached_property
    def latest_before(self) -> list[ScheduleArc | None]:
        """[event] → the arc of smallest gap that leads to the event; None if no arc does."""
        best: list[ScheduleArc | None] = [None] * len(self.spans)
        for arc in self.arcs:
            known = best[arc.after]
            if known is None or self.rank(arc, arc.gap_s) < self.rank(known, known.gap_s):
                best[arc.after] = arc
        return best

    def rank(self, arc: ScheduleArc, gap_s: float) -> tuple[float, bool, int]:
        """Sort key of arcs to one event: gap, raised to the tolerance; events with a duration first; then `why`."""
        begin_s, end_s = self.spans[arc.before]
        return max(gap_s, self.plan.tolerance_s), end_s <= begin_s, arc.why

    @cached_property
    def slack_s(self) -> list[float]:
        """[event] → seconds by which its end may slip without delaying the step: total float in project scheduling.

        Later events move only as far as they must. Memory is ignored, although tensors that wait longer live longer.
        The time to issue an op or hand over a tensor also counts as slack.
        """
        end_s = max((end_s for _, end_s in self.spans), default=0.0)
        slack = [end_s - own_s for _, own_s in self.spans]
        into: dict[int, list[ScheduleArc]] = defaultdict(list)
        after = [0] * len(self.spans)
        for arc in self.arcs:
            into[arc.after].append(arc)
            after[arc.before] += 1
        done = [event for event, count in enumerate(after) if count == 0]
        for event in done:
            for arc in into[event]:
                slack[arc.before] = min(slack[arc.before], max(0.0, arc.gap_s) + slack[event])
                after[arc.before] -= 1
                if after[arc.before] == 0:
                    done.append(arc.before)
        return slack

    def _arc(self, before: int, after: int, why: int) -> ScheduleArc:
        freed_s = self.spans[before][1]
        return ScheduleArc(before, after, self.spans[after][0] - freed_s, why, freed_s)

    def _to_ops(self) -> Iterator[ScheduleArc]:
        placement = self.plan.placement
        arrivals: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, sent in enumerate(self.plan.transfers):
            arrivals[sent.tensor, sent.target].append(self.first_segment[number + 1] - 1)
        for edge in self.plan.graph.edges:
            before, after = self.op_event[edge.source], self.op_event[edge.target]
            here = placement[edge.source] == placement[edge.target]
            if here or not self.plan.transfers:
                yield self._arc(before, after, INPUT if here else TRANSFER)
            for arrival in () if here else arrivals[edge.tensor, placement[edge.target]]:
                yield self._arc(arrival, after, TRANSFER)

    def _on_devices(self) -> Iterator[ScheduleArc]:
        for order in self.plan.order.values():
            for before, after in pairwise(order):
                yield self._arc(self.op_event[before], self.op_event[after], DEVICE)

    def _from_barrier(self) -> Iterator[ScheduleArc]:
        phase = {op.id: op.phase for op in self.plan.graph.ops}
        forward = [entry for entry in self.plan.ops if phase[entry.op] in (None, "forward")]
        if self.plan.options.step == "autograd" and forward:
            loss = self.op_event[max(forward, key=lambda entry: entry.end_s).op]
            for event, entry in enumerate(self.plan.ops):
                if phase[entry.op] in ("backward", "optimizer"):
                    yield self._arc(loss, event, BARRIER)

    def _of_transfers(self) -> Iterator[ScheduleArc]:
        for number, sent in enumerate(self.plan.transfers):
            first, end = self.first_segment[number : number + 2]
            yield self._arc(self.op_event[sent.source], first, PRODUCER)
            for before, after in pairwise(range(first, end)):
                yield self._arc(before, after, RELAY)

    def _on_links(self) -> Iterator[ScheduleArc]:
        if self.plan.options.contention != "link":
            return
        number = {id(sent): number for number, sent in enumerate(self.plan.transfers)}
        uses: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
        for hop, found in link_uses(self.plan).items():
            direction = self.plan.topology.link_between[hop].direction(hop)
            uses[direction] += [
                (use.start_s, use.end_s, self.first_segment[number[id(use.transfer)]] + use.part) for use in found
            ]
        for ordered in map(sorted, uses.values()):
            for (_, end_s, before), (start_s, _, after) in pairwise(ordered):
                # From use to use, because a link late on the route is taken after the segment starts.
                yield ScheduleArc(before, after, start_s - end_s, LINK, end_s)


@dataclass(frozen=True, slots=True)
class PathPart:
    """An op or transfer on the critical path, and the interval that the path spends on it.

    For an op, this interval is the op's run. For a transfer, the interval may be shorter than the transfer, which may
    wait for a link on its way, or free a link before it arrives.
    """

    step: ScheduledOp | Transfer
    begin_s: float
    end_s: float

    @property
    def time_s(self) -> float:
        """The length of this part in seconds."""
        return self.end_s - self.begin_s


def critical_path(plan: Plan, arcs: ScheduleArcs | None = None) -> tuple[PathPart, ...]:
    """The chain of ops and transfers up to the op that ends last, each starting when its predecessor ends.

    The search goes backwards from that op. An op waits for a tensor (from its producer here or a transfer), its device,
    or the barrier at the loss; a transfer waits for its producer or a link. If several predecessors end together,
    events with a duration win, then the order just given. The path begins at an event without a wait. If issuing ops
    or handing over tensors delays an op, its predecessor is the event that ended last; the time between the two belongs
    to no part of the path. Times are compared with the tolerance of `dlplacer.check`.
    """
    arcs = arcs or ScheduleArcs(plan)
    into: dict[int, list[ScheduleArc]] = defaultdict(list)
    for arc in arcs.arcs:
        if arcs.spans[arc.after][0] > plan.tolerance_s:
            into[arc.after].append(arc)
    is_delayed, slack_s = dispatch_of(plan.topology).delays, plan.tolerance_s
    event = max(range(len(plan.ops)), key=lambda number: plan.ops[number].end_s)
    walked = {event}
    found, until_s = [], arcs.spans[event][1]
    while True:
        # Events without duration end where they start; without this check the walk could cycle among them.
        before = [arc for arc in into[event] if arc.before not in walked]
        # An event that ends at time 0 is a predecessor only without a gap; otherwise the path begins after it.
        longest_s = inf if is_delayed else slack_s
        near = (arc for arc in before if abs(arc.gap_s) <= (longest_s if arc.freed_s > slack_s else slack_s))
        best = min(near, key=lambda arc: arcs.rank(arc, abs(arc.gap_s)), default=None)
        if best is None:
            found.append(PathPart(arcs.steps[event], min(until_s, arcs.spans[event][0]), until_s))
            return _joined(found[::-1])
        # A transfer that waits for its last link may make another wait for its first: it then adds no time to the path.
        begin_s = min(until_s, best.freed_s + (best.gap_s if best.gap_s > plan.tolerance_s else 0.0))
        found.append(PathPart(arcs.steps[event], begin_s, until_s))
        event, until_s = best.before, min(begin_s, best.freed_s)
        walked.add(event)


def _joined(parts: list[PathPart]) -> tuple[PathPart, ...]:
    """Join successive segments of one transfer into one step."""
    runs = (list(run) for _, run in groupby(parts, key=lambda part: id(part.step)))
    return tuple(PathPart(run[0].step, run[0].begin_s, run[-1].end_s) for run in runs)
