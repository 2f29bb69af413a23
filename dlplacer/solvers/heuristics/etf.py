"""ETF: earliest task first (Hwang, Chow, Anger and Lee 1989, SIAM J. Computing 18(2)), and its memory-aware form.

Of all pairs of a ready op and a device, the pair that can start first is taken next.
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush

from dlplacer.solvers.heuristics.occupancy import Fixed, Occupancy, Priority, fitted
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time

Candidate = tuple[int, int, int]
"""When an op can start on a device, its place in the order of preference, and the op."""


class Queue:
    """The ops that may run on one device."""

    def __init__(self) -> None:
        self.waiting: list[Candidate] = []
        self.ready: list[tuple[int, int]] = []

    def push(self, arrival: int, key: int, op: int) -> None:
        """Add an op whose data arrive then."""
        heappush(self.waiting, (arrival, key, op))

    def first(self, free: int, arrival_of: Callable[[int], int | None]) -> Candidate | None:
        """The op that can start first on a device free from that tick on; None if the queue holds no more.

        Parameters
        ----------
        arrival_of
            What is now known of an op's arrival, which can only have become later; None if it has gone elsewhere.
        """
        while self.waiting and self.waiting[0][0] <= free:
            heappush(self.ready, heappop(self.waiting)[1:])
        while self.waiting or self.ready:
            start, key, op = (free, *self.ready[0]) if self.ready else self.waiting[0]
            arrival = arrival_of(op)
            if arrival is not None and arrival <= start:
                return start, key, op
            if self.ready:
                heappop(self.ready)
            else:
                heappop(self.waiting)
            if arrival is not None:
                self.push(arrival, key, op)
        return None


def m_etf(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of m-ETF (Jeon et al. 2020, Baechi, SoCC), or None if an op fits on no device that it may use.

    A pair whose device lacks the memory for the op's block is passed over; of ops that can start at the same time the
    preferred goes first (by level in the paper).

    Other than in the papers: devices may differ, and of several on which an op can start at once it takes the fastest;
    transfers do not wait for each other, as the problem has it, where Baechi lets a device send and receive one tensor
    at a time; memory is the sum of footprints.
    """
    return EarliestFirst(instance, priority, fixed).run()


def etf(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of ETF, which decides without regard to memory, repaired where that does not fit; None if it fails.

    To repair, the blocks are gone through once more in the order in which ETF started them; one that finds its device
    full goes where most room is left. ETF then orders all ops anew on that placement. Where memory does not bind this
    is `m_etf`; the parameters are the same too.
    """
    if instance.memory_binds:
        unlimited = replace(instance, capacity=(None,) * instance.device_count)
        free = EarliestFirst(unlimited, priority, fixed).run()
        if free is None:
            return None
        order = sorted(instance.order, key=free.start.__getitem__)
        fixed = fitted(instance, [free.device[ops[0]] for ops in instance.members], order, fixed)
        if fixed is None:
            return None
    return EarliestFirst(instance, priority, fixed).run()


class EarliestFirst:
    """The state of one run."""

    def __init__(self, instance: Instance, priority: Priority, fixed: Fixed) -> None:
        count, devices = instance.op_count, instance.device_count
        self.instance = instance
        self.priority = priority
        self.occupancy = Occupancy(instance, fixed)
        self.done = [op in instance.sources for op in range(count)]
        self.missing = [
            len(arcs) - len(sources) for arcs, sources in zip(instance.predecessors, instance.source_arcs, strict=True)
        ]
        self.arrival = [[0] * devices for _ in range(count)]
        self.left = count - sum(self.done)
        self.start = [0] * count
        self.free = [0] * devices
        self.queues = [Queue() for _ in range(devices)]

    def run(self) -> Schedule | None:
        """The schedule, or None if some op finds no device."""
        for op, missing in enumerate(self.missing):
            if not missing and not self.done[op]:
                self.release(op)
        while self.left:
            ask_time()
            choices = [
                (start, key, reluctance, self.instance.duration[op][device], device, op)
                for device in range(self.instance.device_count)
                for (start, key, op), reluctance in self.candidates(device)
            ]
            if not choices:
                return None
            start, _, _, _, device, op = min(choices)
            self.take(op, device, start)
            if self.occupancy.overfull:
                return None
        return self.occupancy.scheduled(self.start)

    def release(self, op: int) -> None:
        """Queue an op, whose predecessors are all scheduled, for every device that it may use."""
        for device in self.instance.allowed[op]:
            self.queues[device].push(self.arrival[op][device], self.priority[op], op)

    def candidates(self, device: int) -> list[tuple[Candidate, int]]:
        """The op that a device can start first, if any; the number says how much rather it leaves the op to others."""
        found = self.queues[device].first(self.free[device], lambda op: self.arrival_at(op, device))
        return [] if found is None else [(found, 0)]

    def arrival_at(self, op: int, device: int) -> int | None:
        """When all that an op reads can be on a device; None if the op is done or may not go there any more."""
        if self.done[op] or not self.occupancy.admits(op, device):
            return None
        return max(self.arrival[op][device], self.occupancy.source_arrival(op, device))

    def take(self, op: int, device: int, start: int) -> None:
        """Run an op, and release the readers that waited for it only."""
        start = max(start, self.occupancy.assign_with_sources(op, device))
        end = start + self.instance.duration[op][device]
        self.start[op], self.free[device], self.done[op] = start, end, True
        self.left -= 1
        for target, delay in self.instance.successors[op]:
            self.arrival[target] = [
                max(known, end + ticks) for known, ticks in zip(self.arrival[target], delay[device], strict=True)
            ]
            self.missing[target] -= 1
            if not self.missing[target]:
                self.release(target)
