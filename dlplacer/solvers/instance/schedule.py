"""Placement and start times for the ops of an instance, and what can be done to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlplacer.problem.seconds import Activity, ResourceUse, earliest
from dlplacer.problem.transfers import ScheduledTransfer, Traffic
from dlplacer.solvers.instance.instance import Instance


@dataclass(frozen=True, slots=True)
class Schedule:
    """Device and start tick of every op, the tick at which the last op ends, and the transfers that `traffic` asks for.

    Transfers are in the order in which they were planned; empty for instances without traffic.
    """

    device: tuple[int, ...]
    start: tuple[int, ...]
    makespan: int
    transfers: tuple[ScheduledTransfer, ...] = ()

    def mirrored(self, instance: Instance) -> "Schedule":
        """The same schedule of the reversed instance: what ended last starts first."""
        start = tuple(
            self.makespan - begin - instance.duration[op][self.device[op]] for op, begin in enumerate(self.start)
        )
        return Schedule(self.device, start, self.makespan)


def sequence(instance: Instance, device: Sequence[int], start: Sequence[int]) -> list[int]:
    """All ops by start, then end, then topological order: an order in which they can run."""
    end = [begin + instance.duration[op][device[op]] for op, begin in enumerate(start)]
    return sorted(instance.order, key=lambda op: (start[op], end[op]))


def keeps_blocks_and_memory(instance: Instance, schedule: Schedule) -> bool:
    """True if every block is on one device (eq. 7) and no device holds more than it can (eq. 13)."""
    used = [0] * instance.device_count
    for ops, size in zip(instance.members, instance.footprint, strict=True):
        here = schedule.device[ops[0]]
        if any(schedule.device[op] != here for op in ops):
            return False
        used[here] += size
    return all(room is None or size <= room for size, room in zip(used, instance.capacity, strict=True))


def with_transfers(
    instance: Instance,
    traffic: Traffic,
    device: Sequence[int],
    start: Sequence[int],
    transfers: Sequence[ScheduledTransfer],
) -> Schedule:
    """The schedule with these transfers, those that nothing needs left out: all as early as their order allows.

    The order of ops on devices and of transfers on link directions is that of the given ticks.
    """
    chosen: dict[tuple[int, int], ScheduledTransfer] = {}
    for send in transfers:
        request = traffic.requests[send.request]
        if device[request.source] != send.target and any(device[op] == send.target for op in request.readers):
            chosen.setdefault((send.request, send.target), send)
    needed = tuple(chosen.values())
    steps = _steps(instance, traffic, device, start, needed)
    begun = [round(tick) for tick in earliest(steps, waits_for_memory=False)]
    early = tuple(begun[: instance.op_count])
    place, kept = instance.op_count, []
    for send in needed:
        kept.append(replace(send, start=tuple(begun[place : place + len(send.route)])))
        place += len(send.route)
    makespan = max(begin + instance.duration[op][device[op]] for op, begin in enumerate(early))
    return Schedule(tuple(device), early, makespan, tuple(kept))


def _steps(
    instance: Instance,
    traffic: Traffic,
    device: Sequence[int],
    start: Sequence[int],
    transfers: Sequence[ScheduledTransfer],
) -> list[Activity]:
    """The ops as activities, then the route segments of the transfers."""
    rank = {op: position for position, op in enumerate(instance.order)}
    length = [instance.duration[op][here] for op, here in enumerate(device)]
    inputs: list[list[tuple[int, float]]] = [
        [(source, length[source] + delay[device[source]][device[op]]) for source, delay in arcs]
        for op, arcs in enumerate(instance.predecessors)
    ]
    segments: list[Activity] = []
    for send in transfers:
        request = traffic.requests[send.request]
        before = request.source, length[request.source]
        for part, (begin, segment) in enumerate(zip(send.start, send.route, strict=True)):
            holds = tuple(
                ResourceUse(resource, begin + offset, begin + offset + ticks, offset, ticks)
                for resource, offset, ticks in segment.holds
            )
            key = begin, begin + segment.ticks, rank[request.source], part
            segments.append(Activity(key, segment.ticks, (before,), holds))
            before = instance.op_count + len(segments) - 1, segment.ticks
        for reader in request.readers:
            if device[reader] == send.target:
                inputs[reader].append(before)
    ops = [
        Activity(
            (begin, begin + length[op], rank[op], -1),
            length[op],
            tuple(inputs[op]),
            (ResourceUse(-1 - device[op], begin, begin + length[op], 0, length[op]),),
        )
        for op, begin in enumerate(start)
    ]
    return [*ops, *segments]
