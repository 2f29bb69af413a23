"""The critical path of a plan: the chain of ops and transfers that makes its step as long as it is."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from dlplacer.check.violation import tolerance_s
from dlplacer.link_use import LinkUse, link_uses
from dlplacer.plan import Plan, ScheduledOp, Transfer

Step = ScheduledOp | Transfer


def critical_path(plan: Plan) -> tuple[Step, ...]:
    """Ops and transfers from the first to the op that ends last, each starting when the one before it ends.

    Walks back from the end. An op waits for a tensor (its producer here, or the transfer that brings it), for its
    device, or for the barrier at the loss; a transfer for its producer or for a link. Where several end at that moment,
    what took time comes first, then in the order just given. The path begins where nothing ends at the start: at time
    0, or at an op that starts later than it must. Times are compared with the tolerance of `dlplacer.check`.
    """
    walk = _Waits(plan)
    here: _Event | None = _Event(max(plan.ops, key=lambda entry: entry.end_s))
    events: dict[tuple[str, str, int], _Event] = {}
    while here is not None and here.key not in events:
        events[here.key] = here
        here = walk.before(here)
    steps = [event.step for event in reversed(events.values())]
    return tuple(steps[:1] + [after for before, after in pairwise(steps) if after is not before])


class _Event:
    """An op, or one segment of a transfer."""

    def __init__(self, step: Step, part: int = 0) -> None:
        self.step, self.part = step, part
        span = step if isinstance(step, ScheduledOp) else step.segments[part]
        self.start_s, self.end_s = span.start_s, span.end_s
        name = (step.op, "") if isinstance(step, ScheduledOp) else (step.tensor, f"{step.target} {step.start_s!r}")
        self.key = (*name, part)


class _Waits:
    """What every op and transfer of a plan may have waited for."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.slack_s = plan, tolerance_s(plan)
        self.before_on_device = {
            after: before for order in plan.order.values() for before, after in pairwise(order)
        }
        self.arrivals: dict[tuple[str, str], list[Transfer]] = defaultdict(list)
        for transfer in plan.transfers:
            self.arrivals[transfer.tensor, transfer.target].append(transfer)
        self.barrier = self._last_forward_op()
        self.uses_of: dict[int, list[LinkUse]] = defaultdict(list)
        self.lane: dict[tuple[str, str], list[LinkUse]] = defaultdict(list)
        for hop, uses in link_uses(plan).items() if plan.options.contention == "link" else ():
            for use in uses:
                self.uses_of[id(use.transfer)].append(use)
            self.lane[self._lane_name(hop)] += uses

    def before(self, event: _Event) -> _Event | None:
        """What ended when the event started; None if nothing did."""
        waits = self._of_op(event.step) if isinstance(event.step, ScheduledOp) else self._of_transfer(event)
        ended = [wait for wait in waits if abs(wait.end_s - event.start_s) <= self.slack_s]
        return max(ended, key=lambda wait: wait.end_s > wait.start_s, default=None)

    def _of_op(self, entry: ScheduledOp) -> Iterator[_Event]:
        for edge in self.plan.graph.edges_into[entry.op]:
            producer = self.plan.scheduled[edge.source]
            if producer.device == entry.device:
                yield _Event(producer)
            else:
                yield from (_last(transfer) for transfer in self.arrivals[edge.tensor, entry.device])
        if entry.op in self.before_on_device:
            yield _Event(self.plan.scheduled[self.before_on_device[entry.op]])
        if self.barrier is not None and self.plan.graph.op(entry.op).phase in ("backward", "optimizer"):
            yield _Event(self.barrier)

    def _of_transfer(self, event: _Event) -> Iterator[_Event]:
        transfer = event.step
        assert isinstance(transfer, Transfer)
        if event.part:
            yield _Event(transfer, event.part - 1)
        else:
            yield _Event(self.plan.scheduled[transfer.source])
        for use in self.uses_of[id(transfer)]:
            if use.part == event.part:
                for other in self.lane[self._lane_name(use.hop)]:
                    if other.transfer is not transfer and abs(other.end_s - use.start_s) <= self.slack_s:
                        yield _Event(other.transfer, other.part)

    def _last_forward_op(self) -> ScheduledOp | None:
        forward: Iterable[ScheduledOp] = ()
        if self.plan.options.step == "autograd":
            forward = (entry for entry in self.plan.ops if self.plan.graph.op(entry.op).phase in (None, "forward"))
        return max(forward, key=lambda entry: entry.end_s, default=None)

    def _lane_name(self, hop: tuple[str, str]) -> tuple[str, str]:
        half = self.plan.topology.link_between[hop].duplex == "half"
        return (min(hop), max(hop)) if half else hop


def _last(transfer: Transfer) -> _Event:
    return _Event(transfer, len(transfer.segments) - 1)
