"""The critical path of a plan: the chain of ops and transfers that makes its step as long as it is."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from dlplacer.core.plan import Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.report.link_use import LinkUse, link_uses

Step = ScheduledOp | Transfer


def critical_path(plan: Plan) -> tuple[Step, ...]:
    """Ops and transfers up to the op that ends last, each starting when the one before it ends.

    Walks back from the end. An op waits for a tensor (its producer here, or the transfer that brings it), for its
    device, or for the barrier at the loss; a transfer for its producer or for a link. Where several end at that moment,
    what took time comes first, then in the order just given. The path begins where nothing ends at the start: at time
    0, or at an op that starts later than it must. Times are compared with the tolerance of `dlplacer.check`.
    """
    waits = _Waits(plan)
    event: _Event | None = _Event(max(plan.ops, key=lambda entry: entry.end_s))
    walked: dict[_Event, None] = {}
    while event is not None:
        walked[event] = None
        event = max(
            # Ops and transfers without duration end where they start; without this the walk could go round among them.
            (before for before in waits.ended_at_start(event) if before not in walked),
            key=lambda before: before.span.end_s > before.span.start_s,
            default=None,
        )
    steps = [event.step for event in reversed(walked)]
    return (steps[0], *(after for before, after in pairwise(steps) if after is not before))


@dataclass(frozen=True)
class _Event:
    """An op, or one segment of a transfer."""

    step: Step
    part: int = 0

    @property
    def span(self) -> ScheduledOp | TransferSegment:
        """What has its start and its end."""
        return self.step if isinstance(self.step, ScheduledOp) else self.step.segments[self.part]


class _Waits:
    """What every op and transfer of a plan may have waited for."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slack_s = plan.tolerance_s
        forward = [entry for entry in plan.ops if plan.graph.op(entry.op).phase in (None, "forward")]
        last = max(forward, key=lambda entry: entry.end_s, default=None)
        self.barrier = last if plan.options.step == "autograd" else None
        self.before_on_device = {after: before for order in plan.order.values() for before, after in pairwise(order)}
        self.arrivals: dict[tuple[str, str], list[Transfer]] = defaultdict(list)
        for transfer in plan.transfers:
            self.arrivals[transfer.tensor, transfer.target].append(transfer)
        self.resources: dict[tuple[str, str], list[LinkUse]] = defaultdict(list)
        self.uses: dict[_Event, list[LinkUse]] = defaultdict(list)
        for hop, uses in link_uses(plan).items() if plan.options.contention == "link" else ():
            self.resources[self._resource(hop)] += uses
            for use in uses:
                self.uses[_Event(use.transfer, use.part)].append(use)

    def ended_at_start(self, event: _Event) -> Iterator[_Event]:
        """What the event may have waited for and ended when it started; nothing at time 0."""
        start_s, step = event.span.start_s, event.step
        if start_s <= self.slack_s:
            return
        waits = self._of_op(step) if isinstance(step, ScheduledOp) else [self._before(step, event.part)]
        yield from (before for before in waits if self._same(before.span.end_s, start_s))
        for use in self.uses[event]:
            for other in self.resources[self._resource(use.hop)]:
                if self._same(other.end_s, use.start_s):
                    yield _Event(other.transfer, other.part)

    def _of_op(self, entry: ScheduledOp) -> Iterator[_Event]:
        for edge in self.plan.graph.edges_into[entry.op]:
            producer = self.plan.scheduled[edge.source]
            if producer.device == entry.device:
                yield _Event(producer)
            for transfer in self.arrivals[edge.tensor, entry.device]:
                yield _Event(transfer, len(transfer.segments) - 1)
        if entry.op in self.before_on_device:
            yield _Event(self.plan.scheduled[self.before_on_device[entry.op]])
        if self.barrier is not None and self.plan.graph.op(entry.op).phase in ("backward", "optimizer"):
            yield _Event(self.barrier)

    def _before(self, transfer: Transfer, part: int) -> _Event:
        return _Event(transfer, part - 1) if part else _Event(self.plan.scheduled[transfer.source])

    def _resource(self, hop: tuple[str, str]) -> tuple[str, str]:
        return self.plan.topology.link_between[hop].direction(hop)

    def _same(self, one_s: float, other_s: float) -> bool:
        return abs(one_s - other_s) <= self.slack_s
