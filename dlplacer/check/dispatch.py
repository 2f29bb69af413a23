"""Devices that run an op inside the call that issues it: turns at their process, and what handing over takes."""

from collections import defaultdict
from collections.abc import Iterator

from dlplacer.check.violation import Violation
from dlplacer.core.plan import Plan, ScheduledOp


def turns(plan: Plan) -> Iterator[Violation]:
    """Of devices that share a process, one starts an op no earlier than `dispatch_s` after the start of another's.

    The `dispatch_s` is that of the device that started first. Ops that take no time neither wait nor make wait.
    """
    slack = plan.tolerance_s
    dispatch_s = {
        device.id: device.dispatch_s or 0.0
        for device in plan.topology.devices
        if device.process and not device.asynchronous
    }
    process = {device.id: device.process for device in plan.topology.devices}
    mine = [entry for entry in plan.ops if entry.device in dispatch_s and takes_time(plan, entry)]
    latest: dict[str, dict[str, ScheduledOp]] = defaultdict(dict)
    # Of those that start together, one that holds nobody up may be the first.
    for entry in sorted(mine, key=lambda entry: (entry.start_s, dispatch_s[entry.device])):
        for device, before in latest[process[entry.device]].items():
            needed_s = dispatch_s[device]
            together = entry.start_s - before.start_s <= slack
            if device == entry.device or (together and not dispatch_s[entry.device]):
                continue
            if needed_s and entry.start_s - before.start_s < needed_s - slack:
                yield Violation(
                    "dispatch",
                    f"op {entry.op!r} starts on {entry.device!r} at {entry.start_s:.9g} s, {before.op!r} on "
                    f"{device!r} at {before.start_s:.9g} s; their process needs {needed_s:.9g} s between them",
                )
        latest[process[entry.device]][entry.device] = entry


def hand_overs(plan: Plan) -> Iterator[Violation]:
    """A tensor that changes devices keeps each of the two busy for its `dispatch_s`, once for each device it goes to.

    A device sends behind the op that makes the tensor, and the tensor leaves after that; it receives before the first
    op there that reads it. Nothing else runs there meanwhile.
    """
    sent, received = _sent(plan), _received(plan)
    for device in plan.topology.devices:
        busy_s = 0.0 if device.asynchronous else device.dispatch_s or 0.0
        free_s, before = 0.0, ""
        for entry in (entry for entry in plan.ops if entry.device == device.id) if busy_s else ():
            ready_s = free_s + busy_s * received[entry.op]
            if entry.start_s < ready_s - plan.tolerance_s:
                yield Violation(
                    "hand-over",
                    f"op {entry.op!r} starts on {device.id!r} at {entry.start_s:.9g} s; the device is busy until "
                    f"{ready_s:.9g} s with what it sends {before}and the {received[entry.op]} tensors that it receives",
                )
            for number, (leaves_s, tensor, target) in enumerate(sorted(sent[entry.op]), 1):
                if leaves_s < entry.end_s + number * busy_s - plan.tolerance_s:
                    yield Violation(
                        "hand-over",
                        f"tensor {tensor!r} leaves {device.id!r} for {target!r} at {leaves_s:.9g} s as number {number} "
                        f"behind {entry.op!r}, which ends at {entry.end_s:.9g} s; each takes {busy_s:.9g} s",
                    )
            free_s, before = entry.end_s + busy_s * len(sent[entry.op]), f"behind {entry.op!r} "


def takes_time(plan: Plan, entry: ScheduledOp) -> bool:
    """Whether an op takes time where it is: only then issuing it does."""
    return bool(plan.graph.op(entry.op).time_on(plan.topology.device(entry.device).type))


def _sent(plan: Plan) -> dict[str, list[tuple[float, str, str]]]:
    """Op → what it sends: when that first leaves, tensor and device."""
    first_s: dict[tuple[str, str, str], float] = {}
    for transfer in plan.transfers:
        key = transfer.source, transfer.tensor, transfer.target
        first_s[key] = min(transfer.start_s, first_s.get(key, transfer.start_s))
    sent: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for (op, tensor, target), leaves_s in first_s.items():
        sent[op].append((leaves_s, tensor, target))
    return sent


def _received(plan: Plan) -> dict[str, int]:
    """Op → how many tensors of other devices it is the first to read on its own."""
    known: set[tuple[str, str]] = set()
    received: dict[str, int] = defaultdict(int)
    for entry in plan.ops:
        for edge in plan.graph.edges_into[entry.op]:
            if plan.placement[edge.source] != entry.device and (edge.tensor, entry.device) not in known:
                known.add((edge.tensor, entry.device))
                received[entry.op] += 1
    return received
