"""Memory bookkeeping for blocks assigned one by one, and placements without times."""

from collections.abc import Iterable, Sequence

from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time

Priority = Sequence[int]
"""[op] → place in the order of preference, 0 first."""

Fixed = Sequence[int] | None
"""[block] → device, or -1 if the rule decides; None if the rule decides all."""


class Occupancy:
    """A placement made block by block: `assigned` is [block] → device, -1 if undecided.

    A block takes all its memory when it is assigned (eq. 13), so colocated ops cannot be locked out later. Zero-time
    sources are assigned with their first reader: they start at 0 on any device, and are best where they are read.
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
        """Assign a block to a device."""
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

    def assign_with_sources(self, op: int, device: int) -> None:
        """Assign an op; assign the undecided zero-time sources that it reads to devices as near as memory permits."""
        instance = self.instance
        if self.assigned[instance.block[op]] < 0:
            self.assign(instance.block[op], device)
        for source, delay in instance.source_arcs[op]:
            if self.assigned[instance.block[source]] < 0:
                self._assign_best(source, [-delay[origin][device] for origin in range(instance.device_count)])

    def completed(self) -> list[int] | None:
        """[block] → device, after each remaining block goes to the device with most room; None if memory runs out."""
        for block, ops in enumerate(self.instance.members):
            if self.assigned[block] < 0:
                self._assign_best(ops[0], self.room)
        return None if self.overfull else self.assigned

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


def fitted(
    instance: Instance, wished: Sequence[int | None], ops: Iterable[int], fixed: Fixed = None
) -> list[int] | None:
    """[block] → its wished device, or the one with most room if the wish is full or not allowed; None if none has room.

    Blocks without a wish come last. Ops claim memory in the given order; zero-time sources follow their first reader.
    """
    occupancy = Occupancy(instance, fixed)
    for op in ops:
        ask_time()
        block = instance.block[op]
        wish = wished[block]
        if op in instance.sources or wish is None:
            continue
        here: int | None = occupancy.assigned[block]
        if here == -1:
            here = wish if occupancy.admits(op, wish) else occupancy.best(op, occupancy.room)
        if here is None:
            return None
        occupancy.assign_with_sources(op, here)
        if occupancy.overfull:
            return None
    return occupancy.completed()
