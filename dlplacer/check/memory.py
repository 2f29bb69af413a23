"""Eq. 13: the tensors on a device fit into its memory."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from dlplacer.check.violation import Violation
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes


def peaks(plan: Plan) -> Iterator[Violation]:
    """Eq. 13: Mem(n) is at least the sum of the footprints on n or, under ``memory: live``, the peak of its live bytes.

    The peaks and capacities that the plan reports must also be those of its schedule and topology.
    """
    used = used_bytes(plan)
    yield from _capacities(plan, used)
    yield from _reported(plan, used)


def _capacities(plan: Plan, used: Mapping[str, int]) -> Iterator[Violation]:
    for name, peak in used.items():
        capacity = plan.topology.device(name).memory_bytes
        if capacity is not None and peak > capacity:
            yield Violation(
                "eq. 13 memory",
                f"device {name!r} needs {format_bytes(peak)} ({peak} bytes); it has {format_bytes(capacity)} "
                f"({capacity} bytes)",
            )


def _reported(plan: Plan, used: Mapping[str, int]) -> Iterator[Violation]:
    for name, reported in plan.memory.items():
        if name not in used:
            yield Violation("eq. 13 memory", f"the plan reports memory of {name!r}, which the topology lacks")
            continue
        if reported.peak_bytes != used[name]:
            yield Violation(
                "eq. 13 memory", f"device {name!r}: the plan reports {reported.peak_bytes} bytes; they are {used[name]}"
            )
        capacity = plan.topology.device(name).memory_bytes
        if reported.capacity_bytes != capacity:
            yield Violation(
                "eq. 13 memory",
                f"device {name!r}: the plan reports a capacity of {_bytes_or_unlimited(reported.capacity_bytes)}; the "
                f"topology says {_bytes_or_unlimited(capacity)}",
            )


def used_bytes(plan: Plan) -> dict[str, int]:
    """Device → bytes: the sum of footprints or, under ``memory: live``, the peak of the live bytes."""
    if plan.options.memory == "sum":
        total = dict.fromkeys(plan.topology.device_index, 0)
        for op in plan.graph.ops:
            total[plan.placement[op.id]] += op.footprint_bytes
        return total
    resident, live = dict.fromkeys(plan.topology.device_index, 0), _live_by_device(plan)
    for op in plan.graph.ops:
        resident[plan.placement[op.id]] += _resident_bytes(op)
    return {name: max(level for _, level in _levels(plan, level, live[name])) for name, level in resident.items()}


class LiveTensor(NamedTuple):
    """A tensor or workspace that takes memory on a device for part of the step.

    Attributes
    ----------
    what
        ``output`` of an op there, its ``workspace``, ``copy`` of a tensor from another device, or ``relayed``.
    op
        The op that produces the tensor or uses the workspace.
    start_s, end_s
        Its lifetime in seconds by the memory rule; the end is after the start.
    """

    what: str
    op: str
    start_s: float
    end_s: float
    bytes: int


def live_bytes(plan: Plan, device: str) -> list[tuple[float, int]]:
    """The live bytes of a device over time: (time in seconds, bytes from then on), in order of time.

    To allow for rounding, a tensor is freed up to the time tolerance before its end.
    """
    return _levels(plan, resident_bytes(plan, device), live_tensors(plan, device))


def _levels(plan: Plan, level: int, tensors: Iterable[LiveTensor]) -> list[tuple[float, int]]:
    change: dict[float, int] = defaultdict(int)
    for live in tensors:
        change[live.start_s] += live.bytes
        # At most half of its life, so that a tensor shorter than the tolerance still counts.
        change[live.end_s - min(plan.tolerance_s, (live.end_s - live.start_s) / 2)] -= live.bytes
    levels = [(0.0, level)]
    for time_s in sorted(change):
        level += change[time_s]
        levels.append((time_s, level))
    return levels


def resident_bytes(plan: Plan, device: str) -> int:
    """Bytes of the weights, gradients and state that stay on a device during the whole step."""
    return sum(_resident_bytes(op) for op in plan.graph.ops if plan.placement[op.id] == device)


def _resident_bytes(op: Op) -> int:
    return op.weight_bytes + op.gradient_bytes + op.state_bytes


def live_tensors(plan: Plan, device: str) -> list[LiveTensor]:
    """The tensors and workspaces that are alive on a device for part of the step, without those of size 0.

    An output lives from its producer's start to the end of its last consumer or transfer; a copy from the start of its
    transfer's last segment to the end of its last consumer; a relayed tensor from the start of its arrival to the end
    of its departure; a workspace while its op runs.
    """
    return _live_by_device(plan)[device]


def _live_by_device(plan: Plan) -> Mapping[str, list[LiveTensor]]:
    found: dict[str, list[LiveTensor]] = defaultdict(list)

    def add(device: str, live: LiveTensor) -> None:
        if live.bytes and live.end_s > live.start_s:
            found[device].append(live)

    used_until_s, read_until_s = _last_uses(plan), _last_reads(plan)
    for op in plan.graph.ops:
        entry = plan.scheduled[op.id]
        add(entry.device, LiveTensor("workspace", op.id, entry.start_s, entry.end_s, op.workspace_bytes))
        for part in plan.graph.output_parts.get(op.id, ()):
            until_s = max((used_until_s[op.id, output] for output in part.outputs), default=0.0)
            add(entry.device, LiveTensor("output", op.id, entry.start_s, max(entry.end_s, until_s), part.bytes))
    for sent in plan.transfers:
        arrives_s, until_s = sent.segments[-1].start_s, read_until_s[sent.tensor, sent.target]
        add(sent.target, LiveTensor("copy", sent.source, arrives_s, until_s, sent.bytes))
        for before, after in pairwise(sent.segments):
            add(before.route[-1][1], LiveTensor("relayed", sent.source, before.start_s, after.end_s, sent.bytes))
    return found


def _last_uses(plan: Plan) -> dict[tuple[str, int], float]:
    """(Op, output) → the end of its last consumer on its device or last transfer from there; 0 if it has neither."""
    ends: dict[tuple[str, int], float] = defaultdict(float)
    scheduled, output_of = plan.scheduled, {edge.tensor: edge.output for edge in plan.graph.edges}
    for edge in plan.graph.edges:
        reader = scheduled[edge.target]
        if reader.device == scheduled[edge.source].device:
            key = edge.source, edge.output
            ends[key] = max(ends[key], reader.end_s)
    for transfer in plan.transfers:
        key = transfer.source, output_of.get(transfer.tensor, 0)
        ends[key] = max(ends[key], transfer.segments[0].end_s)
    return ends


def _last_reads(plan: Plan) -> dict[tuple[str, str], float]:
    """(Tensor, device) → the end of its last consumer on the device; 0 if it has none."""
    ends: dict[tuple[str, str], float] = defaultdict(float)
    scheduled = plan.scheduled
    for edge in plan.graph.edges:
        reader = scheduled[edge.target]
        key = edge.tensor, reader.device
        ends[key] = max(ends[key], reader.end_s)
    return ends


def _bytes_or_unlimited(size_bytes: int | None) -> str:
    return "unlimited" if size_bytes is None else f"{size_bytes} bytes"
