"""Large-neighbourhood search: CP-SAT places and orders windows of the best schedule anew, batch after batch."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from random import Random
from threading import Event

import numpy as np
from ortools.sat.python import cp_model

from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.bounds.heads_tails import heads, tails
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.ilp.constraints import Linear, Literal, Variables, create_variables, duration, minimize_makespan
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedule
from dlplacer.solvers.ilp.ilp_model import add_constraints
from dlplacer.solvers.ilp.solver_thread import solved_in_thread
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, keeps_blocks_and_memory, sequence
from dlplacer.solvers.instance.time_limit import now


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


@dataclass(frozen=True)
class WindowSearchParams:
    """The size of windows, and the effort for each: a window that is not solved to the end brings nothing.

    Attributes
    ----------
    first_size, least_size, largest_size
        Ops. Above the largest, CP-SAT sets up no precedence literals (its limit is 60 intervals per device).
    growth, shrinkage
        Factors on the size after an easy window and after one that was not solved.
    work, easy_work
        Deterministic seconds of CP-SAT per window, and those up to which a window counts as easy.
    stuck_after
        Windows in a row without success from which on solutions as good as the present one are taken too.
    most_s
        Seconds per window, should the deterministic limit fail.
    """

    first_size: float = 12.0
    least_size: float = 6.0
    largest_size: float = 80.0
    growth: float = 1.03
    shrinkage: float = 0.85
    work: float = 0.03
    easy_work: float = 0.01
    stuck_after: int = 30
    most_s: float = 5.0


PARAMS = WindowSearchParams()


def search_windows(instance: Instance, incumbent: Incumbent, seconds: float, patience: int) -> None:
    """Offer better schedules until the gap is closed, the time is up, or `patience` windows in a row bring nothing.

    Windows lie at random places. They grow while they are solved with little work and shrink where they are not solved.
    After some windows without success, solutions as good as the present one are taken too, to move on.
    """
    budget = incumbent.budget
    random = Random(budget.seed)
    current = incumbent.best
    size, idle = PARAMS.first_size, 0
    stop_at = now() + seconds
    # Threads suffice: CP-SAT releases the interpreter's lock while it solves.
    with ThreadPoolExecutor(budget.workers) as pool:
        while current is not None and idle < patience and not incumbent.closed:
            if not budget.left_s or now() > stop_at:
                return
            timeline = WindowSequence(instance, current)
            windows = _choose(timeline, round(size), budget.workers, random)
            upper = current.makespan - (idle < PARAMS.stuck_after)
            left = min(PARAMS.most_s, budget.left_s, max(0.0, stop_at - now()))
            tasks = [
                pool.submit(copy_context().run, _solve, window, upper, random.randrange(2**31), left, budget.stop)
                for window in windows
            ]
            results = [task.result() for task in tasks]
            better = _combined(timeline, windows, [found for found, _ in results])
            accepted = better is current or incumbent.accepts(better)
            idle = 0 if accepted and better.makespan < current.makespan else idle + len(windows)
            current = better if accepted else current
            for _, work in results:
                factor = PARAMS.growth if work < PARAMS.easy_work else PARAMS.shrinkage if work >= PARAMS.work else 1.0
                size = min(PARAMS.largest_size, max(PARAMS.least_size, size * factor))


def _choose(timeline: WindowSequence, size: int, count: int, random: Random) -> list[Window]:
    """Windows at random places that do not overlap."""
    size = max(1, min(size, len(timeline.ops) - timeline.first))
    places: list[int] = []
    for _ in range(count):
        place = random.randint(min(timeline.first, len(timeline.ops) - size), len(timeline.ops) - size)
        if all(abs(place - other) >= size for other in places):
            places.append(place)
    return [timeline.window(place, size) for place in places]


def _solve(window: Window, upper: int, seed: int, seconds: float, stop: Event) -> tuple[Schedule | None, float]:
    """A schedule of the window with which the whole takes at most `upper` ticks, and the deterministic work spent."""
    if window.bounds.makespan > upper:
        return None, 0.0
    model, variables = build_window_model(window, upper)
    solver = new_solver(1, seed, seconds, PARAMS.work)
    found = solved_in_thread(solver, model, seconds, stop.is_set)
    if found is None:
        return None, PARAMS.work
    schedule = read_schedule(variables, window.instance, solver.boolean_value, solver.value) if found else None
    return schedule, solver.deterministic_time


def _combined(timeline: WindowSequence, windows: Sequence[Window], found: Sequence[Schedule | None]) -> Schedule:
    """The schedule after all solutions that make it no worse.

    Each window was solved as if the others stayed as they are: two may move a source that both read, or fill the same
    memory, so what they come to together is looked at again.
    """
    current, ops = timeline.schedule, timeline.ops
    for window, schedule in zip(windows, found, strict=True):
        if schedule is not None:
            changed, order = replaced(timeline, current, ops, window, schedule)
            if changed.makespan <= current.makespan and keeps_blocks_and_memory(timeline.instance, changed):
                current, ops = changed, order
    return current
