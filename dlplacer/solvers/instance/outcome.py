"""Schedules in ticks, and the budget of a solve."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Event

from dlplacer.problem.problem import Problem
from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import now


@dataclass(frozen=True)
class ProblemSchedule:
    """A placement and start times for all ops of a problem, in ticks; device and start are indexed by op.

    Attributes
    ----------
    transfers
        All transfers with their times, or None where they leave as soon as they can and never wait.
    """

    problem: Problem
    device: tuple[int, ...]
    start: tuple[int, ...]
    transfers: tuple[ScheduledTransfer, ...] | None = None

    @classmethod
    def of(cls, problem: Problem, instance: Instance, schedule: Schedule) -> "ProblemSchedule":
        """The schedule of a schedule of the problem's instance."""
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
    deadline
        value of the clock (`now`) at which to stop.
    gap
        Stop when (makespan − bound) ÷ makespan is at most this.
    grace_s
        Seconds behind the deadline that a first schedule may take, where none or that of one device is known.
    stop
        Set by whoever wants the solve to end early with its best plan.
    without
        Names of phases and heuristics that the default method leaves out, for studies of their worth.
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
        """The budget of a first schedule: no more than that is worth being late for."""
        return replace(self, deadline=self.deadline + self.grace_s, grace_s=0.0)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, 0 if it has passed or somebody asked to stop."""
        return 0.0 if self.stop.is_set() else max(0.0, self.deadline - now())

    @property
    def unreported(self) -> "Budget":
        """The same without reports: for the search of a problem whose bounds, or whose schedules, are another's."""
        return replace(self, report=lambda makespan, bound: None)


@dataclass(frozen=True)
class Outcome:
    """The result of a solver: the best schedule, or None, and a makespan in ticks that no schedule can beat."""

    schedule: ProblemSchedule | None
    lower_bound: int
