"""HEFT: heterogeneous earliest finish time (Topcuoglu, Hariri and Wu 2002), with insertion, memory-aware."""

from collections.abc import Iterable, Sequence

from dlplacer.solvers.heuristics.common.memory_state import Fixed, Occupancy, Priority
from dlplacer.solvers.instance.busy_intervals import BusyIntervals
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.link_state import LinkState
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.schedule_with_transfers import with_transfers
from dlplacer.solvers.instance.time_limit import ask_time

Choice = tuple[int, int, int, int]
"""End of an op on a device plus what is ahead of it there, its end, the device, its begin."""


def heft(
    instance: Instance, priority: Priority, fixed: Fixed = None, ahead: Sequence[Sequence[int]] | None = None
) -> Schedule | None:
    """The schedule of HEFT, or None if an op fits on no device that it may use.

    Ops are taken by rising `priority`, which must put every op after all that it reads; each goes to the device where
    it ends first, into the earliest gap that holds it. Where there is traffic, what it reads goes into gaps of links.

    Parameters
    ----------
    ahead
        [op][device] → ticks that count besides the end there; none by default.
    """
    return _Insertion(instance, fixed).run(sorted(range(instance.op_count), key=priority.__getitem__), ahead)


class _Insertion:
    """The state of one run."""

    def __init__(self, instance: Instance, fixed: Fixed) -> None:
        self.instance = instance
        self.occupancy = Occupancy(instance, fixed)
        self.resources = [BusyIntervals() for _ in instance.capacity]
        self.links = None if instance.traffic is None else LinkState(instance.traffic)
        self.start, self.end = [0] * instance.op_count, [0] * instance.op_count

    def run(self, ops: Iterable[int], ahead: Sequence[Sequence[int]] | None) -> Schedule | None:
        for op in ops:
            ask_time()
            if op not in self.instance.sources:
                choice = self._choose(op, ahead)
                if choice is None or not self._book(op, choice):
                    return None
        found = self.occupancy.scheduled(self.start)
        if self.links is None or found is None:
            return found
        kept = with_transfers(self.instance, self.links.traffic, found.device, self.start, self.links.transfers)
        return min(found, kept, key=lambda schedule: schedule.makespan)

    def _choose(self, op: int, ahead: Sequence[Sequence[int]] | None) -> Choice | None:
        best: Choice | None = None
        for device in self.instance.allowed[op]:
            if self.occupancy.admits(op, device):
                ticks = self.instance.duration[op][device]
                begin = self.resources[device].earliest(self._arrival(op, device), ticks)
                end = begin + ticks
                choice = end if ahead is None else end + ahead[op][device], end, device, begin
                if best is None or choice < best:
                    best = choice
        return best

    def _arrival(self, op: int, device: int) -> int:
        instance, occupancy, end = self.instance, self.occupancy, self.end
        latest = occupancy.source_arrival(op, device)
        for source, delay in instance.predecessors[op]:
            if source not in instance.sources:
                arrival = end[source] + delay[occupancy.assigned[instance.block[source]]][device]
                if arrival > latest:
                    latest = arrival
        if self.links is not None:
            latest = max(latest, self.links.expect_inputs(op, device, occupancy.assigned, instance.block, end))
        return latest

    def _book(self, op: int, choice: Choice) -> bool:
        """Put an op where it was decided, later if what it reads turns out to be late; whether memory sufficed."""
        instance, occupancy = self.instance, self.occupancy
        _, _, device, begin = choice
        ticks = instance.duration[op][device]
        promised = occupancy.source_arrival(op, device)
        arrival = occupancy.assign_with_sources(op, device)
        if occupancy.overfull:
            return False
        if self.links is not None:
            sent = self.links.send_inputs(op, occupancy.assigned, instance.block, self.end)
            arrival, promised = max(arrival, sent), begin
        if arrival > promised:
            begin = self.resources[device].earliest(max(begin, arrival), ticks)
        self.start[op], self.end[op] = begin, begin + ticks
        self.resources[device].insert(begin, begin + ticks)
        return True
