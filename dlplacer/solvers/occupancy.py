"""Which block is on which device while a heuristic runs, and how much memory is left."""

from collections.abc import Sequence

from dlplacer.solvers.instance import Instance


class Occupancy:
    """Devices of blocks, decided one by one; -1 where undecided.

    A block takes all its memory when it is decided (eq. 13), so colocated ops cannot be locked out later. Sources of
    zero time are decided last, by the first op that reads them: they start at 0 anywhere, and best where they are read.
    """

    def __init__(self, instance: Instance, fixed: Sequence[int] | None = None) -> None:
        self.instance = instance
        self.site = [-1] * len(instance.members)
        self.room: list[float] = [float("inf") if size is None else size for size in instance.capacity]
        self.overfull = False
        for block, device in enumerate(fixed or ()):
            if device >= 0:
                self.settle(block, device)

    def settle(self, block: int, device: int) -> None:
        """Decide a block."""
        self.site[block] = device
        self.room[device] -= self.instance.footprint[block]
        if self.room[device] < 0:
            self.overfull = True

    def admits(self, op: int, device: int) -> bool:
        """Whether an op may go to a device: it is allowed there, and its block is there or fits."""
        block = self.instance.block[op]
        if self.site[block] >= 0:
            return self.site[block] == device
        return device in self.instance.allowed[op] and self.instance.footprint[block] <= self.room[device]

    def source_arrival(self, op: int, device: int) -> int:
        """When the data of the zero-time sources that an op reads can be on a device."""
        latest = 0
        for source, delay in self.instance.source_arcs[op]:
            here = self.site[self.instance.block[source]]
            if here >= 0:
                arrival = delay[here][device]
            else:
                arrival = min(delay[origin][device] for origin in self.instance.allowed[source])
            if arrival > latest:
                latest = arrival
        return latest

    def settle_with_sources(self, op: int, device: int) -> int:
        """Decide an op and the undecided zero-time sources that it reads; when their data is on its device.

        A source goes to the nearest device that admits it, which for want of memory may be farther than
        `source_arrival` promised.
        """
        instance = self.instance
        if self.site[instance.block[op]] < 0:
            self.settle(instance.block[op], device)
        for source, delay in instance.source_arcs[op]:
            if self.site[instance.block[source]] < 0:
                self._settle_best(source, [-delay[origin][device] for origin in range(instance.device_count)])
        return 0 if self.overfull else self.source_arrival(op, device)

    def settle_rest(self) -> None:
        """Decide every block that is left, each where most room is."""
        for block, ops in enumerate(self.instance.members):
            if self.site[block] < 0:
                self._settle_best(ops[0], self.room)

    def _settle_best(self, op: int, value: Sequence[float]) -> None:
        fitting = [device for device in self.instance.allowed[op] if self.admits(op, device)]
        if fitting:
            self.settle(self.instance.block[op], max(fitting, key=lambda device: value[device]))
        else:
            self.overfull = True
