"""Windows of a schedule: some ops to place and order anew between what comes before and what comes after them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.bounds.heads_tails import heads, tails
from dlplacer.solvers.decode.in_sequence import in_sequence
from dlplacer.solvers.ilp.constraints import minimize_makespan
from dlplacer.solvers.ilp.ilp_model import add_constraints
from dlplacer.solvers.ilp.variables import Linear, Literal, Variables, create_variables, duration
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, sequence


@dataclass(frozen=True)
class Window:
    """A sub-problem whose best solution is the best that can replace a slice of a schedule.

    Attributes
    ----------
    ops
        Positions of its ops in the whole instance; sources of zero time first.
    instance
        Its ops alone; devices that the rest of the schedule forbids are left out, and memory is what the rest leaves.
    release, tail
        [op][device] → earliest start there, and least time from its end there to the end of the schedule.
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
        allowed = self.instance.allowed
        head = heads(self.instance, [min(row[d] for d in allowed[op]) for op, row in enumerate(self.release)])
        tail = tails(self.instance, [min(row[d] for d in allowed[op]) for op, row in enumerate(self.tail)])
        longest = max(h + ticks + t for h, ticks, t in zip(head, self.instance.shortest, tail, strict=True))
        return Bounds(max(self.rest, longest), tuple(head), tuple(tail))


class WindowSequence:
    """A schedule as a sequence of ops, from which windows are cut.

    Attributes
    ----------
    ops
        Sources of zero time, then all others by start: the schedule follows this sequence.
    first
        Position of the first op that is not such a source.
    """

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self.instance, self.schedule = instance, schedule
        by_start = sequence(instance, schedule.device, schedule.start)
        self.ops = [op for op in by_start if op in instance.sources]
        self.first = len(self.ops)
        self.ops += [op for op in by_start if op not in instance.sources]
        self.position = [0] * instance.op_count
        for position, op in enumerate(self.ops):
            self.position[op] = position
        device = schedule.device
        self.end = [start + instance.duration[op][device[op]] for op, start in enumerate(schedule.start)]
        self.path = self._paths()
        self._crossing = np.array(
            [
                (
                    self.position[op],
                    self.position[target],
                    self.end[op] + delay[device[op]][device[target]] + self.path[target],
                )
                for op, arcs in enumerate(instance.successors)
                for target, delay in arcs
            ],
            dtype=np.int64,
        ).reshape(-1, 3)
        self._used = [0] * instance.device_count
        for block, ops in enumerate(instance.members):
            self._used[device[ops[0]]] += instance.footprint[block]

    def window(self, first: int, count: int) -> Window:
        """The window of `count` ops from position `first` on, and the sources that they read.

        What comes before keeps its times; what comes after keeps its devices and its order, so the time from the start
        of each to the end of the schedule is a longest path.
        """
        instance = self.instance
        chosen = self.ops[first : first + count]
        chosen = sorted({source for op in chosen for source, _ in instance.source_arcs[op]}) + chosen
        inside = set(chosen)
        part = instance.restricted(chosen)
        free = [inside.issuperset(instance.members[instance.block[chosen[ops[0]]]]) for ops in part.members]
        limits = {
            block: _common([self._devices(chosen[op], first, free[block]) for op in ops])
            for block, ops in enumerate(part.members)
        }
        before = self._last(self.ops[self.first : first], self.end)
        after = self._last(reversed(self.ops[first + count :]), self.path)
        return Window(
            ops=tuple(chosen),
            instance=replace(
                part.limited(limits),
                footprint=tuple(size if free[block] else 0 for block, size in enumerate(part.footprint)),
                capacity=self._room(
                    [instance.block[chosen[ops[0]]] for ops, is_free in zip(part.members, free, strict=True) if is_free]
                ),
            ),
            release=tuple(self._release(op, inside, before) for op in chosen),
            tail=tuple(self._tail(op, first + count, after) for op in chosen),
            rest=self._rest(inside, first, first + count, before, after),
        )

    def _paths(self) -> list[int]:
        """[op] → longest route from its start to the end of the schedule, with every device's order kept."""
        path, after = [0] * self.instance.op_count, [0] * self.instance.device_count
        for op in reversed(self.ops):
            here = self.schedule.device[op]
            below = 0 if op in self.instance.sources else after[here]
            for target, delay in self.instance.successors[op]:
                below = max(below, delay[here][self.schedule.device[target]] + path[target])
            path[op] = below + self.instance.duration[op][here]
            if op not in self.instance.sources:
                after[here] = path[op]
        return path

    def _last(self, ops: Iterable[int], value: Sequence[int]) -> list[int]:
        """[device] → the value of the last one of some ops there; 0 without any."""
        last = [0] * self.instance.device_count
        for op in ops:
            last[self.schedule.device[op]] = value[op]
        return last

    def _release(self, op: int, inside: set[int], before: Sequence[int]) -> tuple[int, ...]:
        if op in self.instance.sources:
            return (0,) * self.instance.device_count
        release = list(before)
        for source, delay in self.instance.predecessors[op]:
            if source not in inside:
                row = delay[self.schedule.device[source]]
                release = [max(known, self.end[source] + ticks) for known, ticks in zip(release, row, strict=True)]
        return tuple(release)

    def _tail(self, op: int, last: int, after: Sequence[int]) -> tuple[int, ...]:
        tail = [0] * self.instance.device_count if op in self.instance.sources else list(after)
        for target, delay in self.instance.successors[op]:
            if self.position[target] >= last:
                there, path = self.schedule.device[target], self.path[target]
                tail = [max(known, delay[device][there] + path) for device, known in enumerate(tail)]
        return tuple(tail)

    def _devices(self, op: int, first: int, free: bool) -> tuple[int, ...]:
        """Devices of the same component from which every earlier reader still gets the op's data in time."""
        here = self.schedule.device[op]
        if not free:
            return (here,)
        readers = [
            (self.schedule.start[target], delay, self.schedule.device[target])
            for target, delay in self.instance.successors[op]
            if self.position[target] < first
        ]
        return tuple(
            device
            for device in self.instance.allowed[op]
            if self.instance.component[device] == self.instance.component[here]
            and all(delay[device][there] <= start for start, delay, there in readers)
        )

    def _room(self, free: Sequence[int]) -> tuple[int | None, ...]:
        """Memory that the other blocks leave on every device."""
        room = [
            None if size is None else size - used for size, used in zip(self.instance.capacity, self._used, strict=True)
        ]
        for block in free:
            device = self.schedule.device[self.instance.members[block][0]]
            left = room[device]
            room[device] = None if left is None else left + self.instance.footprint[block]
        return tuple(room)

    def _rest(self, inside: set[int], first: int, last: int, before: Sequence[int], after: Sequence[int]) -> int:
        """The makespan that the ops outside a window have even without it."""
        through = [start + rest for start, rest in zip(before, after, strict=True)]
        sources, targets, lengths = self._crossing.T
        outside = (sources < first) & (targets >= last)
        if any(op in self.instance.sources for op in inside):
            outside &= ~np.isin(sources, [self.position[op] for op in inside if op in self.instance.sources])
        return max([*through, int(lengths[outside].max(initial=0))])


def replaced(
    timeline: WindowSequence, current: Schedule, ops: Sequence[int], window: Window, found: Schedule
) -> tuple[Schedule, list[int]]:
    """A schedule and its sequence after a window of the timeline is placed and ordered as found.

    Parameters
    ----------
    current, ops
        The schedule to change and its sequence: the timeline's, or what other windows have made of it.
    """
    instance = timeline.instance
    device = list(current.device)
    for op, here in zip(window.ops, found.device, strict=True):
        device[op] = here
    moved = [window.ops[op] for op in sequence(window.instance, found.device, found.start)]
    moved = [op for op in moved if op not in instance.sources]
    first = min(timeline.position[op] for op in moved)
    new = [*ops[:first], *moved, *ops[first + len(moved) :]]
    return in_sequence(instance, device, new), new


def _common(device_sets: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(device for device in device_sets[0] if all(device in devices for devices in device_sets))


def build_window_model(window: Window, upper: int) -> tuple[cp_model.CpModel, Variables]:
    """The model of a window of a schedule: the same rules, between what comes before and what comes after."""
    model, bounds = cp_model.CpModel(), window.bounds
    variables = create_variables(model, window.instance, bounds, upper)
    add_constraints(model, window.instance, variables, bounds, upper)
    _join_surroundings(model, window, variables)
    minimize_makespan(model, variables)
    return model, variables


def _join_surroundings(model: cp_model.CpModel, window: Window, variables: Variables) -> None:
    """A window's ops start after the release, and leave the tail, of the device that they are on."""
    for op, (release, tail) in enumerate(zip(window.release, window.tail, strict=True)):
        literals = variables.place[window.instance.block[op]]
        start = variables.start[op]
        if op not in window.instance.sources:
            model.add(start >= _chosen(literals, release))
        model.add(variables.makespan >= start + duration(window.instance, variables, op) + _chosen(literals, tail))


def _chosen(literals: dict[int, Literal], values: Sequence[int]) -> Linear | int:
    """The value of the device that is chosen."""
    least = min(values[device] for device in literals)
    rest = [(literal, values[device] - least) for device, literal in literals.items() if values[device] > least]
    if not rest:
        return least
    return least + cp_model.LinearExpr.weighted_sum([literal for literal, _ in rest], [value for _, value in rest])
