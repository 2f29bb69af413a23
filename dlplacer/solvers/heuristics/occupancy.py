"""Memory while blocks are assigned one by one, and placements without times."""

from collections.abc import Callable, Iterable, Sequence

from dlplacer.solvers.decode.decode import compact
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time

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


def place_blocks(
    instance: Instance,
    ops: Iterable[int],
    choose: Callable[[Occupancy, int], int | None],
    fixed: Fixed = None,
) -> list[int] | None:
    """[block] → device, decided op by op; None if an op finds no device.

    Parameters
    ----------
    ops
        In the order in which they choose; the sources of zero time among them wait for their first reader.
    choose
        Where the block of an op shall go, or None if there is no such device.
    """
    occupancy = Occupancy(instance, fixed)
    for op in ops:
        ask_time()
        if op in instance.sources:
            continue
        here: int | None = occupancy.assigned[instance.block[op]]
        if here == -1:
            here = choose(occupancy, op)
        if here is None:
            return None
        occupancy.assign_with_sources(op, here)
        if occupancy.overfull:
            return None
    return occupancy.completed()


def fitted(instance: Instance, wished: Sequence[int], ops: Iterable[int], fixed: Fixed = None) -> list[int] | None:
    """[block] → the device wished for it, or one with most room where that may not be or is full; None if none is left.

    Parameters
    ----------
    wished
        [block] → device.
    ops
        In the order in which they claim memory.
    """

    def choose(occupancy: Occupancy, op: int) -> int | None:
        device = wished[instance.block[op]]
        return device if occupancy.admits(op, device) else occupancy.best(op, occupancy.room)

    return place_blocks(instance, ops, choose, fixed)


def choose_components(instance: Instance) -> Instance:
    """The instance with every part of the graph limited to one connected component of the machine.

    Parts with most work choose first, each the component that ends with the least work per device among those whose
    memory still suffices (any, if none does). Nothing changes if the machine is connected.
    """
    components = sorted(set(instance.component))
    if len(components) == 1:
        return instance
    devices = {number: [d for d, other in enumerate(instance.component) if other == number] for number in components}
    load, limits = dict.fromkeys(components, 0.0), {}
    room = {
        number: sum(float("inf") if (size := instance.capacity[d]) is None else size for d in devices[number])
        for number in components
    }
    work = {
        part: sum(instance.longest[op] for block in part for op in instance.members[block]) for part in instance.parts
    }
    for part in sorted(instance.parts, key=lambda part: -work[part]):
        size = sum(instance.footprint[block] for block in part)
        possible = [number for number in components if _admits(instance, part, devices[number])]
        fitting = [number for number in possible if room[number] >= size] or possible
        if fitting:
            best = min(fitting, key=lambda number: (load[number] + work[part]) / len(devices[number]))
            load[best] += work[part]
            room[best] -= size
            limits.update(dict.fromkeys(part, tuple(devices[best])))
    return instance.limited(limits)


def pack(instance: Instance) -> list[int] | None:
    """[block] → device such that memory suffices, found by worst fit decreasing; None if that fails.

    The instance must come from `choose_components`.
    """
    occupancy = Occupancy(instance)
    for block in sorted(range(len(instance.members)), key=lambda block: -instance.footprint[block]):
        device = occupancy.best(instance.members[block][0], occupancy.room)
        if device is None:
            return None
        occupancy.assign(block, device)
    return occupancy.assigned


def _admits(instance: Instance, part: tuple[int, ...], devices: list[int]) -> bool:
    return all(set(instance.allowed[instance.members[block][0]]).intersection(devices) for block in part)
