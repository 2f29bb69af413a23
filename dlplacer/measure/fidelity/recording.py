"""Recorded steps: when every op ran on every device of all processes, and the step that stands for several."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.measure.fidelity.process_group import OneProcess
from dlplacer.measure.fidelity.side_by_side import Names
from dlplacer.runtime.executor.run import OpSpan
from dlplacer.runtime.placed.placed_module import PlacedModule


@dataclass(frozen=True)
class Recording:
    """One step as it ran.

    Attributes
    ----------
    spans
        Device → its ops in order, in seconds since the first device began.
    began_ns
        That moment on the clock ``time.perf_counter_ns`` of the first process.
    wall_s
        The whole step as its caller sees it, on the slowest process.
    """

    spans: Mapping[str, tuple[OpSpan, ...]]
    began_ns: int = 0
    wall_s: float = 0.0

    @cached_property
    def length_s(self) -> float:
        """From the first device's begin to the end of the last op."""
        return max((span.end_s for spans in self.spans.values() for span in spans), default=0.0)


def record_steps(placed: PlacedModule, step: Callable[[], object], count: int, group: OneProcess) -> list[Recording]:
    """Run a step of a placed module some times and record each, joined over all processes and the same on each.

    All processes begin a step together. Devices and ops have the names of the group. Ahead of them goes one that is not
    kept: it compiles what records, which took four times as long as a step of GNMT.
    """
    own = []
    placed.records = True
    try:
        step()
        for _ in range(count):
            group.gathered(None)
            begin = time.perf_counter()
            step()
            own.append({"wall_s": time.perf_counter() - begin, **_sent(placed)})
    finally:
        placed.records = False
    offsets_ns = group.clock_offsets_ns()
    steps = zip(*(map(_arrived, theirs) for theirs in group.gathered(own)), strict=True)
    return [joined(recordings, offsets_ns, group.names) for recordings in steps]


def joined(recordings: Sequence[Recording], offsets_ns: Sequence[int], names: Sequence[Names]) -> Recording:
    """One recording of what every rank recorded of a step.

    Time counts from the moment at which the first device of any rank began, on the clock of rank 0.

    Parameters
    ----------
    recordings
        [rank] → its devices' ops, under the names of the plan.
    offsets_ns
        [rank] → by how much its clock is ahead of that of rank 0.
    names
        [rank] → the names that its ops and devices get.
    """
    began_ns = [recording.began_ns - ahead_ns for recording, ahead_ns in zip(recordings, offsets_ns, strict=True)]
    zero_ns = min(began_ns)
    spans = {}
    for recording, since_ns, called in zip(recordings, began_ns, names, strict=True):
        late_s = (since_ns - zero_ns) * 1e-9
        for device, ran in recording.spans.items():
            spans[called.devices[device]] = tuple(
                OpSpan(called.op(span.op), late_s + span.start_s, late_s + span.end_s) for span in ran
            )
    return Recording(spans, zero_ns, max(recording.wall_s for recording in recordings))


def median_recording(recordings: Sequence[Recording]) -> Recording:
    """The recording of median length; of an even number the shorter one in the middle."""
    return sorted(recordings, key=lambda recording: recording.length_s)[(len(recordings) - 1) // 2]


def mean_op_times(recordings: Sequence[Recording], names: Sequence[Names], ops: Sequence[str]) -> dict[str, float]:
    """Op of the plan → seconds: the mean over the replicas of the median over the steps."""
    times: dict[str, list[float]] = defaultdict(list)
    for recording in recordings:
        for spans in recording.spans.values():
            for span in spans:
                times[span.op].append(span.end_s - span.start_s)
    # Every replica has as many ranks as any other, so that the mean over ranks is that over replicas.
    return {op: fmean(median(times[called.op(op)]) for called in names) for op in ops}


def measured_plan(predicted: Plan, recording: Recording) -> Plan:
    """The recording in the form of a plan, to be drawn and traced next to the predicted one. It has no transfers.

    Parameters
    ----------
    predicted
        A plan on devices of the recording's names.
    """
    ops = [
        ScheduledOp(span.op, device.id, span.start_s, span.end_s)
        for device in predicted.topology.devices
        for span in recording.spans[device.id]
    ]
    return replace(
        predicted,
        status="feasible",
        method="measured",
        makespan_s=recording.length_s,
        ops=tuple(sorted(ops, key=lambda entry: entry.start_s)),
        transfers=(),
        memory={},
    )


def _sent(placed: PlacedModule) -> dict[str, Any]:
    """The last step of a process as it travels: JSON."""
    timelines = placed.timelines
    zero_ns = min(timeline.started_ns for timeline in timelines.values())
    spans = {
        name: [(span.op, span.start_s, span.end_s) for span in timeline.spans(placed.devices[name], zero_ns)]
        for name, timeline in timelines.items()
    }
    return {"began_ns": zero_ns, "spans": spans}


def _arrived(sent: Mapping[str, Any]) -> Recording:
    spans = {name: tuple(OpSpan(*span) for span in ran) for name, ran in sent["spans"].items()}
    return Recording(spans, sent["began_ns"], sent["wall_s"])
