"""A job that runs as planned: its steps, and recordings of when every op ran on every device of one replica."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.measure.eager import tensors_in
from dlplacer.measure.process_group import OneProcess
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.placed.placed_module import PlacedModule

Spans = Mapping[str, Sequence[tuple[str, float, float]]]
"""Device of the plan → its ops in order, with the seconds of their begins and ends since the step began."""


@dataclass(frozen=True)
class PlacedJob:
    """A plan of a job, placed.

    Attributes
    ----------
    captured
        The captured step of all processes of a replica; its collectives are not bound to a group.
    parts
        [replica] → its part of the job.
    whole
        The job with the batch of which the parts are cut; None if there is none.
    replica
        That of this process.
    """

    placed: PlacedModule
    captured: Captured
    parts: Sequence[Job]
    whole: Job | None = None
    replica: int = 0

    @property
    def job(self) -> Job:
        """The part of this process's replica."""
        return self.parts[self.replica]

    @property
    def devices(self) -> dict[str, RuntimeDevice]:
        """Device of the plan → device, for those of this process that compute."""
        return {name: device for name, device in self.placed.devices.items() if not name.startswith(NETWORK)}

    def step(self) -> tuple[torch.Tensor, ...]:
        """Take a step to its end, without the gradients of the last one; the loss, or the tensors of inference."""
        self.placed.zero_grad(set_to_none=True)
        if self.job.mode == "infer":
            result = tensors_in(self.placed(*self.job.args, **self.job.kwargs))
        else:
            result = (self.placed.step(*self.job.args, *self.job.targets, **self.job.kwargs),)
        for device in self.devices.values():
            device.drain()
        return result

    def recorded(self, count: int, group: OneProcess) -> list["Recording"]:
        """Recordings of some steps of the first replica; the same on every process.

        All processes begin a step together, from which their clocks count. Ahead of them goes one that is not kept: it
        compiles what records.
        """
        own = []
        self.placed.records = True
        try:
            self.step()
            for _ in range(count):
                group.gathered(None)
                begin_ns = time.perf_counter_ns()
                self.step()
                wall_s = (time.perf_counter_ns() - begin_ns) * 1e-9
                own.append((wall_s, self._spans(begin_ns)))
        finally:
            self.placed.records = False
        return [joined(ranks, group.replica_of) for ranks in zip(*group.gathered(own), strict=True)]

    def _spans(self, begin_ns: int) -> Spans:
        found = {}
        for name, line in self.placed.timelines.items():
            late_s = (line.started_ns - begin_ns) * 1e-9
            spans = line.spans(self.placed.devices[name])
            found[name] = [(span.op, late_s + span.start_s, late_s + span.end_s) for span in spans]
        return found


@dataclass(frozen=True)
class Recording:
    """One step as it ran, from the begin of its first op; `wall_s` is the step as its caller sees it, on the slowest
    process.
    """

    spans: Spans
    wall_s: float

    @property
    def length_s(self) -> float:
        """From the first op's begin to the end of the last."""
        return max((end_s for spans in self.spans.values() for _, _, end_s in spans), default=0.0)


def joined(ranks: Sequence[tuple[float, Spans]], replica_of: Sequence[int]) -> Recording:
    """One recording of the seconds and spans that the ranks of the first replica recorded of a step."""
    lines = [line for (_, own), replica in zip(ranks, replica_of, strict=True) if not replica for line in own.items()]
    zero_s = min((ran[0][1] for _, ran in lines if ran), default=0.0)
    spans: dict[str, list[tuple[str, float, float]]] = {}
    for name, ran in lines:
        # Every process runs a part of the network, where the plan has one.
        device = NETWORK if name.startswith(NETWORK) else name
        spans.setdefault(device, []).extend((op, start_s - zero_s, end_s - zero_s) for op, start_s, end_s in ran)
    return Recording(spans, max(wall_s for wall_s, _ in ranks))


def median_recording(recordings: Sequence[Recording]) -> Recording:
    """The recording of median length; of an even number the shorter one in the middle."""
    return sorted(recordings, key=lambda recording: recording.length_s)[(len(recordings) - 1) // 2]


def median_op_times(recordings: Sequence[Recording]) -> dict[str, float]:
    """Op → median seconds."""
    times: dict[str, list[float]] = {}
    for recording in recordings:
        for op, start_s, end_s in (span for spans in recording.spans.values() for span in spans):
            times.setdefault(op, []).append(end_s - start_s)
    return {op: median(found) for op, found in times.items()}


def measured_plan(predicted: Plan, recording: Recording) -> Plan:
    """The recording in the form of a plan, to be drawn and traced next to the predicted one. It has no transfers."""
    ops = [ScheduledOp(op, name, start, end) for name, ran in recording.spans.items() for op, start, end in ran]
    return replace(
        predicted,
        status="feasible",
        method="measured",
        makespan_s=recording.length_s,
        ops=tuple(sorted(ops, key=lambda entry: entry.start_s)),
        transfers=(),
        memory={},
    )
