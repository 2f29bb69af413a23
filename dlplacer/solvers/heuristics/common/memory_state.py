"""The device of every block while a heuristic runs, and the memory that is left."""

from collections.abc import Sequence

from dlplacer.solvers.decode.in_sequence import compact
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule

Priority = Sequence[int]
"""[op] → place in the order of preference, 0 first."""

Fixed = Sequence[int] | None
"""[block] → device, or -1 where the rule shall decide; None if it decides them all."""


class Occupancy:
    """Devices of blocks, decided one by one; -1 where undecided.

    A block takes all its memory when it is decided (eq. 13), so colocated ops cannot be locked out later. Sources of
    zero time are decided last, by the first op that reads them: they start at 0 anywhere, and best where they are read.
    """

    def __init__(self, instance: Instance, fixed: Fixed = None) -> None:
        self.instance = instance
        self.assigned = [-1] * len(instance.members)
        self.room: list[float] = [float("inf") if size is None else size for size in instance.capacity]
        self.overfull = False
        for block, device in enumerate(fixed or ()):
            if device >= 0:
                self.assign(block, device)

    def assign(self, block: int, device: int) -> None:
        """Decide a block."""
        self.assigned[block] = device
        self.room[device] -= self.instance.footprint[block]
        if self.room[device] < 0:
            self.overfull = True

    def admits(self, op: int, device: int) -> bool:
        """True if an op may go to a device: it is allowed there, and its block is there or fits."""
        block = self.instance.block[op]
        if self.assigned[block] >= 0:
            return self.assigned[block] == device
        return device in self.instance.allowed[op] and self.instance.footprint[block] <= self.room[device]

    def source_arrival(self, op: int, device: int) -> int:
        """When the data of the zero-time sources that an op reads can be on a device."""
        latest = 0
        for source, delay in self.instance.source_arcs[op]:
            here = self.assigned[self.instance.block[source]]
            if here >= 0:
                arrival = delay[here][device]
            else:
                arrival = min(delay[origin][device] for origin in self.instance.allowed[source])
            if arrival > latest:
                latest = arrival
        return latest

    def assign_with_sources(self, op: int, device: int) -> int:
        """Decide an op and the undecided zero-time sources that it reads; when their data is on its device.

        A source goes to the nearest device that admits it, which for want of memory may be farther than
        `source_arrival` promised.
        """
        instance = self.instance
        if self.assigned[instance.block[op]] < 0:
            self.assign(instance.block[op], device)
        for source, delay in instance.source_arcs[op]:
            if self.assigned[instance.block[source]] < 0:
                self._assign_best(source, [-delay[origin][device] for origin in range(instance.device_count)])
        return 0 if self.overfull else self.source_arrival(op, device)

    def completed(self) -> list[int] | None:
        """[block] → device, after every block that is left goes where most room is; None if memory does not suffice."""
        for block, ops in enumerate(self.instance.members):
            if self.assigned[block] < 0:
                self._assign_best(ops[0], self.room)
        return None if self.overfull else self.assigned

    def scheduled(self, start: Sequence[int]) -> Schedule | None:
        """The schedule of an order that start ticks give, with the rest decided; None if memory does not suffice."""
        assigned = self.completed()
        if assigned is None:
            return None
        return compact(self.instance, [assigned[block] for block in self.instance.block], start)

    def best(self, op: int, value: Sequence[float]) -> int | None:
        """The device of largest value among those that admit an op; None if none does."""
        fitting = [device for device in self.instance.allowed[op] if self.admits(op, device)]
        return max(fitting, key=value.__getitem__, default=None)

    def _assign_best(self, op: int, value: Sequence[float]) -> None:
        device = self.best(op, value)
        if device is None:
            self.overfull = True
        else:
            self.assign(self.instance.block[op], device)
