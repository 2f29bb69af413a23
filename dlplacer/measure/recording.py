"""Recorded steps of a plan: when every op ran on every device of one replica."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.measure.process_group import OneProcess
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.placed.placed_module import PlacedModule

Span = tuple[str, float, float]
"""An op, and the seconds of its begin and end since the first device began."""


@dataclass(frozen=True)
class Recording:
    """One step as it ran.

    Attributes
    ----------
    spans
        Device of the plan → its ops in order.
    wall_s
        The whole step as its caller sees it, on the slowest process.
    """

    spans: Mapping[str, Sequence[Span]]
    wall_s: float

    @property
    def length_s(self) -> float:
        """From the first device's begin to the end of the last op."""
        return max((end_s for spans in self.spans.values() for _, _, end_s in spans), default=0.0)


def record_steps(placed: PlacedModule, step: Callable[[], object], count: int, group: OneProcess) -> list[Recording]:
    """Run a step of a placed module some times and record each; the first replica's, the same on every process.

    All processes begin a step together. Ahead of them goes one that is not kept: it compiles what records.
    """
    own = []
    placed.records = True
    try:
        step()
        for _ in range(count):
            group.gathered(None)
            begin = time.perf_counter()
            step()
            wall_s = time.perf_counter() - begin
            lines = {name: (line, line.spans(placed.devices[name])) for name, line in placed.timelines.items()}
            spans = {
                name: (line.started_ns, [(span.op, span.start_s, span.end_s) for span in found])
                for name, (line, found) in lines.items()
            }
            own.append((wall_s, spans))
    finally:
        placed.records = False
    ahead_ns = group.clock_offsets_ns()
    return [joined(ranks, ahead_ns, group.replica_of) for ranks in zip(*group.gathered(own), strict=True)]


def joined(
    ranks: Sequence[tuple[float, Mapping[str, tuple[int, Sequence[Span]]]]],
    ahead_ns: Sequence[int],
    replica_of: Sequence[int],
) -> Recording:
    """One recording of what the ranks of the first replica recorded of a step, on the clock of rank 0."""
    first = [rank for rank, replica in enumerate(replica_of) if replica == 0]
    started = [(rank, *line) for rank in first for line in ranks[rank][1].items()]
    zero_ns = min((began_ns - ahead_ns[rank] for rank, _, (began_ns, ran) in started if ran), default=0)
    spans: dict[str, list[Span]] = {}
    for rank, name, (began_ns, ran) in started:
        late_s = (began_ns - ahead_ns[rank] - zero_ns) * 1e-9
        # Every process runs a part of the network, where the plan has one.
        device = NETWORK if name.startswith(NETWORK) else name
        spans.setdefault(device, []).extend((op, late_s + start_s, late_s + end_s) for op, start_s, end_s in ran)
    return Recording(spans, max(wall_s for wall_s, _ in ranks))


def median_recording(recordings: Sequence[Recording]) -> Recording:
    """The recording of median length; of an even number the shorter one in the middle."""
    return sorted(recordings, key=lambda recording: recording.length_s)[(len(recordings) - 1) // 2]


def median_op_times(recordings: Sequence[Recording]) -> dict[str, float]:
    """Op → median seconds."""
    times: dict[str, list[float]] = {}
    for recording in recordings:
        for spans in recording.spans.values():
            for op, start_s, end_s in spans:
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
