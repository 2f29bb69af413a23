"""Placement and start times for the ops of an instance, and what can be done to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.link_state import LinkState
from dlplacer.solvers.instance.time_limit import ask_time


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


def compact(instance: Instance, device: Sequence[int], start: Sequence[int]) -> Schedule:
    """The schedule in which every op starts as early as this placement and the order of these starts allow.

    It obeys eq. 10 and 12 and ends no later, provided that the given starts do, where zero-time sinks may also lie
    inside another op: such a sink moves to the end of that op, which delays nothing as nothing reads it.
    """
    return in_sequence(instance, device, sequence(instance, device, start))


def sequence(instance: Instance, device: Sequence[int], start: Sequence[int]) -> list[int]:
    """All ops by start, then end, then topological order: an order in which they can run."""
    end = [begin + instance.duration[op][device[op]] for op, begin in enumerate(start)]
    return sorted(instance.order, key=lambda op: (start[op], end[op]))


def in_sequence(instance: Instance, device: Sequence[int], ops: Sequence[int]) -> Schedule:
    """The schedule that starts every op, taken in this order, as early as its data and its device allow.

    Where there is traffic, an op's data are sent when its turn comes, into the first gap that the links have.
    """
    links = None if instance.traffic is None else LinkState(instance.traffic)
    early, end = [0] * instance.op_count, [0] * instance.op_count
    free, every_op = [0] * instance.device_count, range(instance.op_count)
    for op in ops:
        ask_time()
        here = device[op]
        begin = free[here]
        for source, delay in instance.predecessors[op]:
            arrival = end[source] + delay[device[source]][here]
            if arrival > begin:
                begin = arrival
        if links is not None:
            begin = max(begin, links.send_inputs(op, device, every_op, end))
        early[op] = begin
        end[op] = free[here] = begin + instance.duration[op][here]
    return Schedule(tuple(device), tuple(early), max(end), () if links is None else tuple(links.transfers))


def keeps_blocks_and_memory(instance: Instance, schedule: Schedule) -> bool:
    """True if every block is on one device (eq. 7) and no device holds more than it can (eq. 13)."""
    used = [0] * instance.device_count
    for ops, size in zip(instance.members, instance.footprint, strict=True):
        here = schedule.device[ops[0]]
        if any(schedule.device[op] != here for op in ops):
            return False
        used[here] += size
    return all(room is None or size <= room for size, room in zip(used, instance.capacity, strict=True))
