"""A window of a timetable: some ops to place and order anew between what comes before and what comes after them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlplacer.solvers.bounds import Bounds
from dlplacer.solvers.heads import heads, tails
from dlplacer.solvers.instance import Instance
from dlplacer.solvers.timetable import Timetable, in_sequence, sequence


@dataclass(frozen=True)
class Window:
    """A sub-problem whose best solution is the best that can replace a slice of a timetable.

    Attributes
    ----------
    ops
        Positions of its ops in the whole instance.
    instance
        Its ops alone; devices that the rest of the timetable forbids are left out, and memory is what the rest leaves.
    release, tail
        [op][device] → earliest start there, and least time from its end there to the end of the timetable.
    rest
        Makespan of the rest: no solution of the window ends earlier.
    """

    ops: tuple[int, ...]
    instance: Instance
    release: tuple[tuple[int, ...], ...]
    tail: tuple[tuple[int, ...], ...]
    rest: int

    @property
    def bounds(self) -> Bounds:
        """Heads and tails of the window's ops, whatever their devices."""
        head = heads(
            self.instance, [min(row[d] for d in self.instance.allowed[op]) for op, row in enumerate(self.release)]
        )
        tail = tails(
            self.instance, [min(row[d] for d in self.instance.allowed[op]) for op, row in enumerate(self.tail)]
        )
        longest = max(h + ticks + t for h, ticks, t in zip(head, self.instance.shortest, tail, strict=True))
        return Bounds(max(self.rest, longest), tuple(head), tuple(tail))


def cut_window(instance: Instance, timetable: Timetable, ops: Sequence[int], first: int, count: int) -> Window:
    """The window of `count` ops from position `first` on of a sequence that the timetable follows.

    What comes before keeps its times; what comes after keeps its devices and its order, so the time from the start of
    each to the end of the timetable is a longest path. Sources of zero time that the window reads belong to it.
    """
    chosen = [op for op in ops[first : first + count] if op not in instance.sources]
    chosen += sorted({source for op in chosen for source, _ in instance.source_arcs[op]})
    inside = set(chosen)
    left = [op for op in ops[: first + count] if op not in inside]
    right = [op for op in ops[first + count :] if op not in inside]
    surroundings = _Surroundings(instance, timetable, left, right, inside)
    part = instance.restricted(chosen)
    free = [inside.issuperset(instance.members[instance.block[chosen[ops[0]]]]) for ops in part.members]
    limits = {
        block: _common([surroundings.devices(chosen[op], free[block]) for op in ops])
        for block, ops in enumerate(part.members)
    }
    held = {instance.block[chosen[ops[0]]] for block, ops in enumerate(part.members) if free[block]}
    return Window(
        ops=tuple(chosen),
        instance=replace(
            part.limited(limits),
            footprint=tuple(size if free[block] else 0 for block, size in enumerate(part.footprint)),
            capacity=surroundings.room(held),
        ),
        release=tuple(surroundings.release(op) for op in chosen),
        tail=tuple(surroundings.tail(op) for op in chosen),
        rest=surroundings.rest(),
    )


def replaced(
    instance: Instance,
    timetable: Timetable,
    ops: Sequence[int],
    window: Window,
    device: Sequence[int],
    start: Sequence[int],
) -> tuple[Timetable, list[int]]:
    """The timetable, and its sequence, with a window's ops placed and ordered anew."""
    placement = list(timetable.device)
    for op, here in zip(window.ops, device, strict=True):
        placement[op] = here
    inside = set(window.ops)
    first = min(position for position, op in enumerate(ops) if op in inside and op not in instance.sources)
    moved = [window.ops[op] for op in sequence(window.instance, device, start)]
    new = [op for op in moved if op in instance.sources]
    new += [op for op in ops[:first] if op not in inside]
    new += [op for op in moved if op not in instance.sources]
    new += [op for op in ops[first:] if op not in inside]
    return in_sequence(instance, placement, new), new


def _common(device_sets: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(device for device in device_sets[0] if all(device in devices for devices in device_sets))


class _Surroundings:
    """What the rest of a timetable asks of a window."""

    def __init__(
        self, instance: Instance, timetable: Timetable, left: Sequence[int], right: Sequence[int], inside: set[int]
    ) -> None:
        self.instance, self.timetable, self.inside = instance, timetable, inside
        self.left, self.right = set(left), set(right)
        self.end = [start + instance.duration[op][timetable.device[op]] for op, start in enumerate(timetable.start)]
        self.frontier = [0] * instance.device_count
        for op in left:
            here = timetable.device[op]
            self.frontier[here] = max(self.frontier[here], self.end[op])
        self.after = [0] * instance.device_count
        self.path: dict[int, int] = {}
        for op in reversed(right):
            here = timetable.device[op]
            below = max([self.after[here], self._reads(op, here)])
            self.path[op] = instance.duration[op][here] + below
            if op not in instance.sources:
                self.after[here] = self.path[op]

    def _reads(self, op: int, device: int) -> int:
        """Longest way from the end of an op on a device, over its readers on the right, to the end of the timetable."""
        return max(
            (
                delay[device][self.timetable.device[target]] + self.path[target]
                for target, delay in self.instance.successors[op]
                if target in self.path
            ),
            default=0,
        )

    def release(self, op: int) -> tuple[int, ...]:
        if op in self.instance.sources:
            return (0,) * self.instance.device_count
        release = list(self.frontier)
        for source, delay in self.instance.predecessors[op]:
            if source not in self.inside:
                origin = delay[self.timetable.device[source]]
                release = [max(r, self.end[source] + ticks) for r, ticks in zip(release, origin, strict=True)]
        return tuple(release)

    def tail(self, op: int) -> tuple[int, ...]:
        own = op in self.instance.sources
        return tuple(
            max(0 if own else self.after[device], self._reads(op, device))
            for device in range(self.instance.device_count)
        )

    def devices(self, op: int, free: bool) -> tuple[int, ...]:
        """Devices on which no op on the left, and none of another component, would miss the op's data."""
        here = self.timetable.device[op]
        if not free:
            return (here,)
        readers = [
            (self.timetable.start[target], delay, self.timetable.device[target])
            for target, delay in self.instance.successors[op]
            if target in self.left
        ]
        return tuple(
            device
            for device in self.instance.allowed[op]
            if self.instance.component[device] == self.instance.component[here]
            and all(delay[device][there] <= start for start, delay, there in readers)
        )

    def room(self, free: set[int]) -> tuple[int | None, ...]:
        """Memory that the blocks outside the window leave on every device."""
        used = [0] * self.instance.device_count
        for block, ops in enumerate(self.instance.members):
            if block not in free:
                used[self.timetable.device[ops[0]]] += self.instance.footprint[block]
        return tuple(
            None if size is None else size - taken for size, taken in zip(self.instance.capacity, used, strict=True)
        )

    def rest(self) -> int:
        """The makespan that the ops outside the window have even without it."""
        through = [before + after for before, after in zip(self.frontier, self.after, strict=True)]
        left = [max(self.end[op], self.end[op] + self._reads(op, self.timetable.device[op])) for op in self.left]
        return max([*through, *left, *self.path.values()], default=0)
