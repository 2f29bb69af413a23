"""Eq. 13: what is on a device fits into its memory."""

from collections import defaultdict
from collections.abc import Iterator

from dlplacer.check.violation import Violation
from dlplacer.plan import Plan
from dlplacer.units import format_bytes


def capacities(plan: Plan) -> Iterator[Violation]:
    """Eq. 13: Mem(n) ≥ the footprints of the ops on n, or ≥ the peak of what is alive under ``memory: live``."""
    for name, used in used_bytes(plan).items():
        capacity = plan.topology.device(name).memory_bytes
        if capacity is not None and used > capacity:
            yield Violation(
                "eq. 13 memory",
                f"device {name!r} needs {format_bytes(used)} ({used} bytes); it has {format_bytes(capacity)} "
                f"({capacity} bytes)",
            )


def reported_peaks(plan: Plan) -> Iterator[Violation]:
    """The peaks that the plan reports are those of its placement."""
    for name, used in used_bytes(plan).items():
        reported = plan.memory.get(name)
        if reported is not None and reported.peak_bytes != used:
            yield Violation(
                "eq. 13 memory", f"device {name!r}: the plan reports {reported.peak_bytes} bytes; they are {used}"
            )
        if reported is not None and reported.capacity_bytes != plan.topology.device(name).memory_bytes:
            yield Violation(
                "eq. 13 memory",
                f"device {name!r}: the plan reports a capacity of {reported.capacity_bytes} bytes; the topology says "
                f"{plan.topology.device(name).memory_bytes}",
            )


def used_bytes(plan: Plan) -> dict[str, int]:
    """Device → bytes: the sum of footprints, or the peak of what is alive, as the plan's options say."""
    if plan.options.memory == "sum":
        total = dict.fromkeys(plan.topology.device_index, 0)
        for op in plan.graph.ops:
            total[plan.placement[op.id]] += op.footprint_bytes
        return total
    return {
        device.id: max((level for _, level in live_bytes(plan, device.id)), default=0)
        for device in plan.topology.devices
    }


def live_bytes(plan: Plan, device: str) -> list[tuple[float, int]]:
    """What is alive on a device: (time in seconds, bytes from then on), in order of time.

    Weights, gradients and state stay all step. An output lives from its producer's start to the end of its last
    consumer or transfer; a copy from the start of its transfer's last segment to the end of its last consumer;
    workspace while its op runs.
    """
    change: dict[float, int] = defaultdict(int)
    resident = 0
    for op in plan.graph.ops:
        entry = plan.scheduled[op.id]
        if entry.device == device:
            resident += op.weight_bytes + op.gradient_bytes + op.state_bytes
            _alive(change, entry.start_s, entry.end_s, op.workspace_bytes)
            _alive(change, entry.start_s, _last_use_s(plan, op.id, device), op.output_bytes)
    for transfer in plan.transfers:
        if transfer.target == device:
            _alive(change, transfer.segments[-1].start_s, _last_read_s(plan, transfer.tensor, device), transfer.bytes)
        for before, after in zip(transfer.segments, transfer.segments[1:], strict=False):
            if before.route[-1][1] == device:
                _alive(change, before.start_s, after.end_s, transfer.bytes)
    level = resident
    levels = [(0.0, resident)]
    for time_s in sorted(change):
        level += change[time_s]
        levels.append((time_s, level))
    return levels


def _alive(change: dict[float, int], start_s: float, end_s: float, size_bytes: int) -> None:
    if size_bytes and end_s > start_s:
        change[start_s] += size_bytes
        change[end_s] -= size_bytes


def _last_use_s(plan: Plan, op_id: str, device: str) -> float:
    ends = [plan.scheduled[op_id].end_s]
    ends += [
        plan.scheduled[edge.target].end_s
        for edge in plan.graph.edges_from[op_id]
        if plan.placement[edge.target] == device
    ]
    ends += [transfer.segments[0].end_s for transfer in plan.transfers if transfer.source == op_id]
    return max(ends)


def _last_read_s(plan: Plan, tensor: str, device: str) -> float:
    return max(
        (
            plan.scheduled[edge.target].end_s
            for edge in plan.graph.edges
            if edge.tensor == tensor and plan.placement[edge.target] == device
        ),
        default=0.0,
    )
