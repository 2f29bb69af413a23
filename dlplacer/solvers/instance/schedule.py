"""Placement and start times for the ops of an instance, and what can be done to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.problem.transfers import ScheduledTransfer
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
