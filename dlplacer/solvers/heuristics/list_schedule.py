"""Work-conserving list scheduling: no device idles while an op could run on it.

At every moment a free device takes, among the ops whose data are there, the one of highest priority. Data may be there
at different times on different devices, so each device has a queue of its own.
"""

from heapq import heappop, heappush

from dlplacer.solvers.heuristics.common.memory_state import Fixed, Occupancy, Priority
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.link_state import LinkState
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time

_NEVER = 2**62
"""Later than any tick."""


def list_schedule(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule that the rule gives, or None if it runs out of memory on every device that an op may use.

    On machines of unequal devices, an op is left to another device that would end it earlier.
    """
    return _Desk(instance, priority, fixed).run()


class _Desk:
    """The state of one run: of all devices, the one whose next decision is earliest decides next."""

    def __init__(self, instance: Instance, priority: Priority, fixed: Fixed) -> None:
        count = instance.op_count
        self.instance = instance
        self.occupancy = Occupancy(instance, fixed)
        self.patient = not instance.uniform
        zero = [not ticks for ticks in instance.longest]
        self.key = [place - count if zero[op] else place for op, place in enumerate(priority)]
        self.zero = zero
        self.done = [op in instance.sources for op in range(count)]
        self.left = count - sum(self.done)
        self.missing = [
            len(arcs) - len(sources) for arcs, sources in zip(instance.predecessors, instance.source_arcs, strict=True)
        ]
        self.arrival = [[0] * instance.device_count for _ in range(count)]
        self.start = [0] * count
        self.free = [0] * instance.device_count
        self.asleep = [False] * instance.device_count
        self.waiting: list[list[tuple[int, int, int]]] = [[] for _ in self.free]
        self.ready: list[list[tuple[int, int]]] = [[] for _ in self.free]
        self.instant: list[tuple[int, int]] = []
        self.links = None if instance.traffic is None else LinkState(instance.traffic)
        self.end = [0] * count

    def run(self) -> Schedule | None:
        for op, missing in enumerate(self.missing):
            if not missing and not self.done[op]:
                self._release(op)
        while self.left and not self.occupancy.overfull:
            ask_time()
            if self.instant:
                op, device = self.instant.pop()
                if not self.done[op] and self.occupancy.admits(op, device):
                    self._take(op, device, self.free[device])
                continue
            device, now = self._next_decision()
            if device < 0:
                if not any(self.asleep):
                    return None
                self.patient, self.asleep = False, [False] * len(self.free)
                continue
            op = self._choose(device, now)
            if op >= 0:
                self._take(op, device, now)
        return self.occupancy.scheduled(self.start)

    def _release(self, op: int) -> None:
        """Queue an op whose inputs are all scheduled on every device that may still run it."""
        occupancy, arrival, free = self.occupancy, self.arrival[op], self.free
        here = occupancy.assigned[self.instance.block[op]]
        devices = self.instance.allowed[op] if here < 0 else (here,)
        for device in devices:
            if self.instance.source_arcs[op]:
                arrival[device] = max(arrival[device], occupancy.source_arrival(op, device))
            heappush(self.waiting[device], (arrival[device], self.key[op], op))
        if self.zero[op]:
            soonest = min(devices, key=arrival.__getitem__)
            if arrival[soonest] == free[soonest]:
                self.instant.append((op, soonest))

    def _next_decision(self) -> tuple[int, int]:
        """The device that decides next, and when; (-1, …) if no queue holds an op."""
        best, soonest = -1, _NEVER
        done, assigned, block = self.done, self.occupancy.assigned, self.instance.block
        for device, ready in enumerate(self.ready):
            if self.asleep[device]:
                continue
            while ready and (done[ready[0][1]] or assigned[block[ready[0][1]]] not in (-1, device)):
                heappop(ready)
            now = self.free[device]
            if not ready:
                waiting = self.waiting[device]
                while waiting and (done[waiting[0][2]] or assigned[block[waiting[0][2]]] not in (-1, device)):
                    heappop(waiting)
                if not waiting:
                    continue
                now = max(now, waiting[0][0])
            if now < soonest:
                best, soonest = device, now
        return best, soonest

    def _choose(self, device: int, now: int) -> int:
        """The op of highest priority that can start now, or -1 if there is none or all are better left to others."""
        ready, waiting = self.ready[device], self.waiting[device]
        while waiting and waiting[0][0] <= now:
            _, key, op = heappop(waiting)
            heappush(ready, (key, op))
        left_to_others = []
        chosen = -1
        while ready and chosen < 0:
            key, op = heappop(ready)
            if self.done[op] or not self.occupancy.admits(op, device):
                continue
            late = self.occupancy.source_arrival(op, device) if self.instance.source_arcs[op] else 0
            if self.links is not None:
                occupancy, block = self.occupancy, self.instance.block
                late = max(late, self.links.expect_inputs(op, device, occupancy.assigned, block, self.end))
            if late > now:
                self.arrival[op][device] = late
                heappush(waiting, (late, key, op))
            elif self.patient and self._ends_earlier_elsewhere(op, device, now):
                left_to_others.append((key, op))
            else:
                chosen = op
        for entry in left_to_others:
            heappush(ready, entry)
        if chosen < 0 and left_to_others:
            self.asleep[device] = True
            self.free[device] = max(self.free[device], now)
        return chosen

    def _ends_earlier_elsewhere(self, op: int, device: int, now: int) -> bool:
        duration, arrival = self.instance.duration[op], self.arrival[op]
        return any(
            max(now, self.free[other], arrival[other]) + duration[other] < now + duration[device]
            for other in self.instance.allowed[op]
            if other != device and self.occupancy.admits(op, other)
        )

    def _take(self, op: int, device: int, now: int) -> None:
        """Start an op, and release the readers that waited for it only."""
        instance = self.instance
        if instance.source_arcs[op] or self.occupancy.assigned[instance.block[op]] < 0:
            now = max(now, self.occupancy.assign_with_sources(op, device))
        if self.links is not None:
            now = max(now, self.links.send_inputs(op, self.occupancy.assigned, instance.block, self.end))
        end = self.end[op] = now + instance.duration[op][device]
        self.start[op] = now
        self.free[device] = end
        self.done[op] = True
        self.left -= 1
        if self.patient:
            self.asleep = [False] * len(self.free)
        missing = self.missing
        for target, delay in instance.successors[op]:
            arrival = self.arrival[target]
            for other, ticks in enumerate(delay[device]):
                if end + ticks > arrival[other]:
                    arrival[other] = end + ticks
            missing[target] -= 1
            if not missing[target]:
                self._release(target)
