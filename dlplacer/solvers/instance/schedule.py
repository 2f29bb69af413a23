"""Schedules of an instance and of a problem, the budget of a solve, and the best schedule so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Event

from dlplacer.core.errors import InternalError
from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import ScheduledTransfer, Traffic
from dlplacer.problem.simulate import Activity, ResourceUse, earliest
from dlplacer.solvers.instance.instance import FAR, Instance, build_instance
from dlplacer.solvers.instance.placement_loads import loads_of
from dlplacer.solvers.instance.time_limit import now


@dataclass(frozen=True, slots=True)
class Schedule:
    """Device and start tick of every op, the tick at which the last op ends, and transfers in planning order."""

    device: tuple[int, ...]
    start: tuple[int, ...]
    makespan: int
    transfers: tuple[ScheduledTransfer, ...] = ()

    def mirrored(self, instance: Instance) -> "Schedule":
        """The same schedule of the reversed instance: the op that ended last starts first."""
        end = (begin + instance.duration[op][self.device[op]] for op, begin in enumerate(self.start))
        return Schedule(self.device, tuple(self.makespan - each for each in end), self.makespan)


def sequence(instance: Instance, device: Sequence[int], start: Sequence[int]) -> list[int]:
    """All ops by start, then end, then topological order: an order in which they can run."""
    end = [begin + instance.duration[op][device[op]] for op, begin in enumerate(start)]
    return sorted(instance.order, key=lambda op: (start[op], end[op]))


def keeps_blocks_and_memory(instance: Instance, schedule: Schedule) -> bool:
    """True if every block is on one device (eq. 7) and no device exceeds its memory (eq. 13)."""
    used = [0] * instance.device_count
    for ops, size in zip(instance.members, instance.footprint, strict=True):
        here = schedule.device[ops[0]]
        if any(schedule.device[op] != here for op in ops):
            return False
        used[here] += size
    return all(room is None or size <= room for size, room in zip(used, instance.capacity, strict=True))


def with_transfers(
    instance: Instance,
    traffic: Traffic,
    device: Sequence[int],
    start: Sequence[int],
    transfers: Sequence[ScheduledTransfer],
) -> Schedule:
    """The schedule with those of `transfers` that it needs; all starts are as early as the order of ticks allows."""
    chosen: dict[tuple[int, int], ScheduledTransfer] = {}
    for send in transfers:
        request = traffic.requests[send.request]
        if device[request.source] != send.target and any(device[op] == send.target for op in request.readers):
            chosen.setdefault((send.request, send.target), send)
    needed = tuple(chosen.values())
    steps = _steps(instance, traffic, device, start, needed)
    begun = [round(tick) for tick in earliest(steps, waits_for_memory=False)]
    early = tuple(begun[: instance.op_count])
    place, kept = instance.op_count, []
    for send in needed:
        kept.append(replace(send, start=tuple(begun[place : place + len(send.route)])))
        place += len(send.route)
    makespan = max(begin + instance.duration[op][device[op]] for op, begin in enumerate(early))
    return Schedule(tuple(device), early, makespan, tuple(kept))


def _steps(
    instance: Instance,
    traffic: Traffic,
    device: Sequence[int],
    start: Sequence[int],
    transfers: Sequence[ScheduledTransfer],
) -> list[Activity]:
    """The ops as activities, then the route segments of the transfers."""
    rank = {op: position for position, op in enumerate(instance.order)}
    length = [instance.duration[op][here] for op, here in enumerate(device)]
    inputs: list[list[tuple[int, float]]] = [
        [(source, length[source] + delay[device[source]][device[op]]) for source, delay in arcs]
        for op, arcs in enumerate(instance.predecessors)
    ]
    segments: list[Activity] = []
    for send in transfers:
        request = traffic.requests[send.request]
        before = request.source, length[request.source]
        for part, (begin, segment) in enumerate(zip(send.start, send.route, strict=True)):
            holds = tuple(
                ResourceUse(resource, begin + offset, begin + offset + ticks, offset, ticks)
                for resource, offset, ticks in segment.holds
            )
            key = begin, begin + segment.ticks, rank[request.source], part
            segments.append(Activity(key, segment.ticks, (before,), holds))
            before = instance.op_count + len(segments) - 1, segment.ticks
        for reader in request.readers:
            if device[reader] == send.target:
                inputs[reader].append(before)
    ops = [
        Activity(
            (begin, begin + length[op], rank[op], -1),
            length[op],
            tuple(inputs[op]),
            (ResourceUse(-1 - device[op], begin, begin + length[op], 0, length[op]),),
        )
        for op, begin in enumerate(start)
    ]
    return [*ops, *segments]


@dataclass(frozen=True)
class ProblemSchedule:
    """A problem's schedule: [op] → device and start tick; and transfers, None if all leave at once and never wait."""

    problem: Problem
    device: tuple[int, ...]
    start: tuple[int, ...]
    transfers: tuple[ScheduledTransfer, ...] | None = None

    @classmethod
    def of(cls, problem: Problem, instance: Instance, schedule: Schedule) -> "ProblemSchedule":
        """The problem's schedule for a schedule of its instance."""
        count = problem.op_count
        transfers = None if instance.traffic is None else schedule.transfers
        return cls(problem, schedule.device[:count], schedule.start[:count], transfers)

    @cached_property
    def end(self) -> tuple[int, ...]:
        """[op] → tick at which it ends."""
        return tuple(begin + (self.problem.duration[op][self.device[op]] or 0) for op, begin in enumerate(self.start))

    @cached_property
    def makespan(self) -> int:
        """Ticks from 0 to the end of the last op."""
        return max(self.end)

    @cached_property
    def period(self) -> int:
        """Ticks of the largest load in steady state."""
        instance, device = build_instance(self.problem), (*self.device, 0)
        return max(loads_of(self.problem, instance).of([device[ops[0]] for ops in instance.members]))

    @property
    def order(self) -> list[int]:
        """All ops in an order in which they can run: by start, then end, then dependency."""
        return sorted(self.problem.topological, key=lambda op: (self.start[op], self.end[op]))


@dataclass(frozen=True)
class Progress:
    """The state of a solve: incumbent makespan (None before the first plan) and lower bound in seconds."""

    makespan_s: float | None
    lower_bound_s: float
    elapsed_s: float

    @property
    def gap(self) -> float | None:
        """(makespan − bound) ÷ makespan, or None before the first plan."""
        if self.makespan_s is None:
            return None
        return max(0.0, (self.makespan_s - self.lower_bound_s) / self.makespan_s) if self.makespan_s else 0.0


@dataclass(frozen=True)
class Budget:
    """The time and effort of a solve, and the receiver of its reports.

    Attributes
    ----------
    deadline, gap
        Value of the clock (`now`) at which to stop; value of (makespan − bound) ÷ makespan at which to stop.
    grace_s
        Seconds after the deadline allowed for a first schedule, if none or only a single-device one is known.
    stop
        Event that ends the solve early with its best plan.
    without
        Phases and heuristics that the default method leaves out, for ablation studies.
    """

    deadline: float
    gap: float = 0.0
    seed: int = 0
    workers: int = 1
    stop: Event = field(default_factory=Event)
    report: Callable[[int | None, int], None] = lambda makespan, bound: None
    grace_s: float = 0.0
    without: frozenset[str] = frozenset()

    @property
    def for_first(self) -> "Budget":
        """The budget of a first schedule, with the grace period."""
        return replace(self, deadline=self.deadline + self.grace_s, grace_s=0.0)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 if it has passed or a stop was requested."""
        return 0.0 if self.stop.is_set() else max(0.0, self.deadline - now())

    @property
    def unreported(self) -> "Budget":
        """The same budget without reports, for a search with bounds or schedules not of the user's problem."""
        return replace(self, report=lambda makespan, bound: None)


@dataclass(frozen=True)
class Outcome:
    """The result of a solver: the best schedule, or None, and a makespan in ticks that no schedule can beat."""

    schedule: ProblemSchedule | None
    lower_bound: int


class Incumbent:
    """The best schedule and bound of a solve.

    `admits` tests rules that the instance lacks, such as memory over time. `refused` is True once `admits` has rejected
    a schedule shorter than the best. `pass_on` receives every better schedule.
    """

    def __init__(
        self,
        budget: Budget,
        admits: Callable[[Schedule], bool] = lambda schedule: True,
        pass_on: Callable[[Schedule], object] = lambda schedule: None,
    ) -> None:
        self.budget, self.admits, self.pass_on = budget, admits, pass_on
        self.best: Schedule | None = None
        self.bound = 0
        self.refused = False

    def offer(self, schedule: Schedule | None) -> bool:
        """Keep a schedule if it is admitted and the best so far; True if kept."""
        if schedule is None or schedule.makespan >= (FAR if self.best is None else self.best.makespan):
            return False
        if not self.admits(schedule):
            self.refused = True
            return False
        self.best = schedule
        self._report()
        self.pass_on(schedule)
        return True

    def raise_bound(self, bound: int) -> None:
        """Keep a lower bound if it is the highest so far."""
        if bound > self.bound:
            self.bound = bound
            self._report()

    @property
    def closed(self) -> bool:
        """True if the requested gap is reached."""
        if self.best is None:
            return False
        return self.best.makespan - self.bound <= self.budget.gap * self.best.makespan

    def _report(self) -> None:
        # Compare the two: bounds and schedules come from independent code, and CP-SAT has proven wrong optima.
        if self.best is not None and self.bound > self.best.makespan:
            raise InternalError(
                f"the lower bound of {self.bound} ticks is above the makespan of {self.best.makespan} ticks of a "
                "schedule; please report it",
                bound_ticks=self.bound,
                device=list(self.best.device),
                start_ticks=list(self.best.start),
            )
        self.budget.report(None if self.best is None else self.best.makespan, self.bound)


class SchedulesOnly(Incumbent):
    """An incumbent for a model that lacks some plans: passes schedules to the problem's incumbent, ignores bounds."""

    def __init__(self, outer: Incumbent) -> None:
        super().__init__(outer.budget.unreported, outer.admits, outer.offer)

    def raise_bound(self, bound: int) -> None:
        """Ignore the bound."""


Begin = Callable[[Instance, Incumbent], None]
"""The beginning of a solve: it offers schedules of the problem's instance to the incumbent, and may raise the bound."""
