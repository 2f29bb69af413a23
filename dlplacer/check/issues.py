"""Devices whose process runs ahead: an op or a transfer starts after its process has issued it."""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Literal

from dlplacer.check.dispatch import takes_time
from dlplacer.check.violation import Violation
from dlplacer.core.plan import Plan, ScheduledOp

Sent = tuple[str, str]
"""A tensor and the device that it goes to."""


@dataclass(frozen=True, slots=True)
class IssueCall:
    """What a thread asks its process for: to issue an op, or its half of a transfer of what is `sent`."""

    kind: Literal["receive", "op", "send"]
    op: str
    sent: Sent = ("", "")
    takes_time: bool = True


@dataclass(frozen=True, slots=True)
class IssuedAt:
    """When ops and transfers have been issued, in seconds from the step's begin, or from the barrier at the loss."""

    ops: dict[str, float] = field(default_factory=dict)
    transfers: dict[Sent, float] = field(default_factory=dict)


def issued(plan: Plan) -> Iterator[Violation]:
    """No op and no transfer of an asynchronous device starts before it has been issued.

    A thread per device issues in the plan's order: what an op is the first there to read, in the order of the graph's
    edges, each after it has been sent; the op; what others read of it. The threads of a process take turns, first come,
    first served (of those that come together, in the order of the devices), and each call that takes time takes the
    device's `dispatch_s`. Behind the barrier at the loss all begins anew, when that has passed.
    """
    dispatch_s = {device.id: device.dispatch_s or 0.0 for device in plan.topology.devices if device.asynchronous}
    if not any(dispatch_s.values()):
        return
    behind = _behind_barrier(plan)
    barrier_s = max((entry.end_s for entry in plan.ops if entry.op not in behind), default=0.0)
    received: set[Sent] = set()
    for part, begin_s in ((False, 0.0), (True, barrier_s)):
        ops = [entry for entry in plan.ops if entry.device in dispatch_s and (entry.op in behind) == part]
        found = _issue(plan, _calls(plan, ops, list(dispatch_s), received), dispatch_s)
        for entry in ops:
            issued_s = begin_s + found.ops.get(entry.op, 0.0)
            if entry.start_s < issued_s - plan.tolerance_s:
                yield Violation(
                    "dispatch",
                    f"op {entry.op!r} starts on {entry.device!r} at {entry.start_s:.9g} s; its process has issued it "
                    f"at {issued_s:.9g} s",
                )
        for sent in plan.transfers:
            issued_s = found.transfers.get((sent.tensor, sent.target), -1.0) + begin_s
            if issued_s >= begin_s and sent.start_s < issued_s - plan.tolerance_s:
                yield Violation(
                    "dispatch",
                    f"the transfer of {sent.tensor!r} to {sent.target!r} starts at {sent.start_s:.9g} s; the process "
                    f"of {plan.placement.get(sent.source)!r} has issued it at {issued_s:.9g} s",
                )


def _behind_barrier(plan: Plan) -> set[str]:
    if plan.options.step == "joint":
        return set()
    return {op.id for op in plan.graph.ops if op.phase in ("backward", "optimizer")}


def _calls(plan: Plan, ops: list[ScheduledOp], devices: list[str], received: set[Sent]) -> dict[str, deque[IssueCall]]:
    """Device → what its thread asks for, in order; what has been received is not received again."""
    calls: dict[str, deque[IssueCall]] = {device: deque() for device in devices}
    for entry in ops:
        mine = calls[entry.device]
        for edge in plan.graph.edges_into[entry.op]:
            arrives = edge.tensor, entry.device
            if plan.placement[edge.source] != entry.device and arrives not in received:
                received.add(arrives)
                mine.append(IssueCall("receive", entry.op, arrives))
        mine.append(IssueCall("op", entry.op, takes_time=takes_time(plan, entry)))
        readers = [(edge.tensor, plan.placement[edge.target]) for edge in plan.graph.edges_from[entry.op]]
        mine.extend(IssueCall("send", entry.op, sent) for sent in dict.fromkeys(readers) if sent[1] != entry.device)
    return calls


def _issue(plan: Plan, calls: dict[str, deque[IssueCall]], dispatch_s: dict[str, float]) -> IssuedAt:
    """Serve the threads as they come; those that wait for each other in a circle are never served."""
    found = IssuedAt()
    place = plan.topology.device_index
    owner = {device.id: (device.process, "" if device.process else device.id) for device in plan.topology.devices}
    free_s: dict[tuple[str, str], float] = defaultdict(float)
    unsent = {call.sent for queue in calls.values() for call in queue if call.kind == "send"}
    waiting: dict[Sent, list[str]] = defaultdict(list)
    asking = [(0.0, place[device], device) for device, queue in calls.items() if queue]
    heapify(asking)
    while asking:
        now_s, _, device = heappop(asking)
        call = calls[device][0]
        if call.kind == "receive" and call.sent in unsent:
            waiting[call.sent].append(device)
            continue
        sent_s = found.transfers.get(call.sent, now_s)
        if call.kind == "receive" and sent_s > now_s:
            heappush(asking, (sent_s, place[device], device))
            continue
        calls[device].popleft()
        if call.takes_time:
            now_s = free_s[owner[device]] = max(now_s, free_s[owner[device]]) + dispatch_s[device]
        if call.kind == "op":
            found.ops[call.op] = now_s
        elif call.kind == "send":
            found.transfers[call.sent] = now_s
            unsent.discard(call.sent)
            for other in waiting.pop(call.sent, ()):
                heappush(asking, (now_s, place[other], other))
        if calls[device]:
            heappush(asking, (now_s, place[device], device))
    return found
