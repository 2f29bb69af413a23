"""Ops start no earlier than the processes that issue them allow."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from dlplacer.check.violation import Violation
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.topology import Device


def turns(plan: Plan) -> Iterator[Violation]:
    """Devices wait for their processes, which issue one op that takes time after the other.

    Of the ops that a process issues ahead, the n-th to start has n issues before it. Where ops run inside the call that
    issues them, one on another device of the process starts `dispatch_s` after the one before it. What comes before the
    barrier at the loss, if there is one, only adds to that.
    """
    together: dict[tuple[str, bool], list[Device]] = defaultdict(list)
    for device in plan.topology.devices:
        process = f"process {device.process}" if device.process else f"device {device.id}"
        together[process, device.asynchronous].append(device)
    for (_, asynchronous), devices in together.items():
        names = {device.id for device in devices}
        mine = [entry for entry in plan.ops if entry.device in names and entry.end_s > entry.start_s]
        started = sorted(mine, key=lambda entry: (entry.start_s, entry.end_s))
        yield from (_issued_ahead if asynchronous else _inside_the_call)(plan, devices, started)


def _issued_ahead(plan: Plan, devices: list[Device], started: list[ScheduledOp]) -> Iterator[Violation]:
    least_s = min(device.dispatch_s or 0.0 for device in devices)
    for count, entry in enumerate(started if least_s else (), 1):
        if entry.start_s < count * least_s * (1 - 1e-12) - plan.tolerance_s:
            yield Violation(
                "dispatch",
                f"op {entry.op!r} starts on {entry.device!r} at {entry.start_s:.9g} s as number {count} of its "
                f"process, which needs {least_s:.9g} s to issue an op",
            )
            return


def _inside_the_call(plan: Plan, devices: list[Device], started: list[ScheduledOp]) -> Iterator[Violation]:
    turn_s = {device.id: device.dispatch_s or 0.0 for device in devices}
    for before, entry in pairwise(started):
        needed_s = turn_s[before.device] if before.device != entry.device else 0.0
        if needed_s and entry.start_s - before.start_s < needed_s - plan.tolerance_s:
            yield Violation(
                "dispatch",
                f"op {entry.op!r} starts on {entry.device!r} at {entry.start_s:.9g} s, {before.op!r} on "
                f"{before.device!r} at {before.start_s:.9g} s; their process needs {needed_s:.9g} s between them",
            )
            return
