"""Recorded steps: when every op ran on every device, and the step among several that stands for all."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.runtime.executor.device_timeline import OpSpan
from dlplacer.runtime.placed.placed_module import PlacedModule


@dataclass(frozen=True)
class Recording:
    """One step as it ran.

    Attributes
    ----------
    spans
        Device name in the plan → its ops in order, in seconds since the first device began.
    began_ns
        That moment on the clock ``time.perf_counter_ns`` of the process.
    """

    spans: Mapping[str, tuple[OpSpan, ...]]
    began_ns: int = 0

    @cached_property
    def length_s(self) -> float:
        """From the first device's begin to the end of the last op."""
        return max((span.end_s for spans in self.spans.values() for span in spans), default=0.0)


def record_steps(placed: PlacedModule, step: Callable[[], object], count: int) -> list[Recording]:
    """Run a step of a placed module some times and record each."""
    recordings = []
    placed.records = True
    try:
        for _ in range(count):
            step()
            recordings.append(_recording(placed))
    finally:
        placed.records = False
    return recordings


def median_recording(recordings: list[Recording]) -> Recording:
    """The recording of median length; of an even number the shorter one in the middle."""
    return sorted(recordings, key=lambda recording: recording.length_s)[(len(recordings) - 1) // 2]


def median_op_times(recordings: list[Recording]) -> dict[str, float]:
    """Op → median seconds."""
    times: dict[str, list[float]] = defaultdict(list)
    for recording in recordings:
        for spans in recording.spans.values():
            for span in spans:
                times[span.op].append(span.end_s - span.start_s)
    return {op: median(found) for op, found in times.items()}


def measured_plan(predicted: Plan, recording: Recording) -> Plan:
    """The recording in the form of a plan, to be drawn and traced beside the predicted one. It has no transfers.

    Parameters
    ----------
    predicted
        Its devices stand for the recording's, in order.
    """
    ops = [
        ScheduledOp(span.op, device.id, span.start_s, span.end_s)
        for device, spans in zip(predicted.topology.devices, recording.spans.values(), strict=True)
        for span in spans
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


def _recording(placed: PlacedModule) -> Recording:
    timelines = placed.timelines
    zero_ns = min(timeline.started_ns for timeline in timelines.values())
    return Recording(
        {name: tuple(timeline.spans(placed.devices[name], zero_ns)) for name, timeline in timelines.items()}, zero_ns
    )
