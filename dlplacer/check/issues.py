"""Rules on dispatch: a host process issues one op at a time, ahead for asynchronous devices, else as the op starts."""

from collections import defaultdict
from collections.abc import Iterator

from dlplacer.check.violation import Violation
from dlplacer.core.plan import Plan, ScheduledOp


def issued_ahead(plan: Plan) -> Iterator[Violation]:
    """On asynchronous devices, an op starts after its process has spent `dispatch_s` on it and on each earlier op.

    Ops of zero time cost nothing to issue. Behind the barrier at the loss, only ops and time after the barrier count.
    """
    devices = {device.id: device for device in plan.topology.devices if device.asynchronous and device.dispatch_s}
    behind = _behind_barrier(plan)
    barrier_s = max((entry.end_s for entry in plan.ops if entry.op not in behind), default=0.0)
    spent_s: dict[tuple[str, str, bool], float] = defaultdict(float)
    mine = [entry for entry in plan.ops if entry.device in devices and _takes_time(plan, entry)]
    for entry in sorted(mine, key=lambda entry: entry.start_s):
        device, is_behind = devices[entry.device], entry.op in behind
        process = device.process, "" if device.process else device.id, is_behind
        spent_s[process] += device.dispatch_s or 0.0
        issued_s = spent_s[process] + (barrier_s if is_behind else 0.0)
        if entry.start_s < issued_s - plan.tolerance_s:
            yield Violation(
                "dispatch",
                f"op {entry.op!r} starts on {entry.device!r} at {entry.start_s:.9g} s; its process has issued it "
                f"at {issued_s:.9g} s",
            )


def issued_inside(plan: Plan) -> Iterator[Violation]:
    """Two cores of one process start ops at least `dispatch_s` apart.

    The `dispatch_s` of the core that starts first counts. Ops of zero time neither wait nor delay others.
    """
    slack = plan.tolerance_s
    dispatch_s = {
        device.id: device.dispatch_s or 0.0
        for device in plan.topology.devices
        if device.process and not device.asynchronous
    }
    process = {device.id: device.process for device in plan.topology.devices}
    mine = [entry for entry in plan.ops if entry.device in dispatch_s and _takes_time(plan, entry)]
    latest: dict[str, dict[str, ScheduledOp]] = defaultdict(dict)
    # Among ops that start together, one on a core without dispatch time may be the first.
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


def _behind_barrier(plan: Plan) -> set[str]:
    if plan.options.step == "joint":
        return set()
    return {op.id for op in plan.graph.ops if op.phase in ("backward", "optimizer")}


def _takes_time(plan: Plan, entry: ScheduledOp) -> bool:
    """True if an op takes time on its device; only then does its issue take time."""
    return bool(plan.graph.op(entry.op).time_on(plan.topology.device(entry.device).type))
