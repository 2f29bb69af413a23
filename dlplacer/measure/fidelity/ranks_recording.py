"""Steps recorded on all ranks at once, joined on one clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from dlplacer.core.plan import Plan
from dlplacer.measure.fidelity.recording import Recording, measured_plan, median_op_times, record_steps
from dlplacer.measure.fidelity.side_by_side import Names
from dlplacer.runtime.distributed.clocks import clock_offsets_ns
from dlplacer.runtime.distributed.rank_module import RankModule
from dlplacer.runtime.distributed.ranks import Ranks
from dlplacer.runtime.executor.device_timeline import OpSpan


def record_over_ranks(placed: RankModule, step: Callable[[], object], count: int) -> list[Recording]:
    """Run a step some times and record each on all ranks; the same recordings on all of them.

    All ranks begin a step together. What travels between them is JSON.
    """
    group = placed.group

    def together() -> None:
        group.gathered(None)
        step()

    own = record_steps(placed, together, count)
    offsets_ns = clock_offsets_ns(group)
    everyone = group.gathered([_sent(recording) for recording in own])
    steps = zip(*([_arrived(sent) for sent in theirs] for theirs in everyone), strict=True)
    return [joined(recordings, offsets_ns, group.ranks) for recordings in steps]


def joined(recordings: Sequence[Recording], offsets_ns: Sequence[int], ranks: Ranks) -> Recording:
    """One recording of what every rank recorded of a step, with the names of `side_by_side`.

    Time counts from the moment at which the first device of any rank began, on the clock of rank 0.

    Parameters
    ----------
    recordings
        [rank] → its devices' ops.
    offsets_ns
        [rank] → by how much its clock is ahead of that of rank 0.
    """
    began_ns = [recording.began_ns - ahead_ns for recording, ahead_ns in zip(recordings, offsets_ns, strict=True)]
    zero_ns = min(began_ns)
    spans = {}
    for rank, recording in enumerate(recordings):
        names, late_s = Names(ranks, ranks.replica_of(rank)), (began_ns[rank] - zero_ns) * 1e-9
        for device, ran in recording.spans.items():
            spans[names.device(device)] = tuple(
                OpSpan(names.op(span.op), late_s + span.start_s, late_s + span.end_s) for span in ran
            )
    return Recording(spans, zero_ns)


def recorded_plan(predicted: Plan, recording: Recording) -> Plan:
    """A joined recording in the form of a plan, on the devices of the predicted one, by name."""
    spans = {device.id: recording.spans[device.id] for device in predicted.topology.devices}
    return measured_plan(predicted, replace(recording, spans=spans))


def mean_op_times(recordings: list[Recording], ranks: Ranks, ops: Sequence[str]) -> dict[str, float]:
    """Op of the plan → seconds: the mean over the replicas of the median over the steps."""
    times = median_op_times(recordings)
    copies = [Names(ranks, replica) for replica in range(ranks.replicas)]
    return {op: fmean(times[names.op(op)] for names in copies) for op in ops}


def _sent(recording: Recording) -> dict[str, Any]:
    spans = {name: [(span.op, span.start_s, span.end_s) for span in ran] for name, ran in recording.spans.items()}
    return {"began_ns": recording.began_ns, "spans": spans}


def _arrived(sent: Mapping[str, Any]) -> Recording:
    return Recording(
        {name: tuple(OpSpan(*span) for span in ran) for name, ran in sent["spans"].items()}, sent["began_ns"]
    )
