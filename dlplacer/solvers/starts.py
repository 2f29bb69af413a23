"""The first schedules: every heuristic in turn, where memory is short on surrogates too.

As methods by themselves they get the whole limit. So that the default method is behind none of them, they come before
all that is slow, and one that takes long keeps no other from its turn.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dlplacer.problem.problem import Problem
from dlplacer.solvers.feasibility import require_placement
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.memory_admission import Attempt, attempts
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.instance.time_limit import now, within

Start = Callable[[Problem, Instance], Schedule | None]
"""A heuristic; None where it runs out of memory."""


@dataclass(frozen=True)
class StartParams:
    """The heuristics' time. Shares are of what is left when they begin; none was tuned.

    Attributes
    ----------
    share, least_s, most_share
        For all of them once a plan is known, but so many seconds, up to a share: where time is short a search gains
        less than they do.
    late_share
        For those that had no time at the start.
    placement_share
        Where they find no plan: for a placement by itself.
    """

    share: float = 0.3
    least_s: float = 2.0
    most_share: float = 0.8
    late_share: float = 0.1
    placement_share: float = 0.25


PARAMS = StartParams()


@dataclass
class _Run:
    """A heuristic, its attempts that are left, and True once one of them was a plan."""

    start: Start
    attempts: Iterator[Attempt]
    found: bool = False


class StartSearch:
    """All heuristics on a problem, to be stopped and gone on with.

    Parameters
    ----------
    incumbent
        Of the problem.
    starts
        The heuristics in the order of their turns.

    Attributes
    ----------
    surrogate
        The instance that led to the best schedule: where memory over time is short, it does well to search on.
    """

    def __init__(self, problem: Problem, instance: Instance, incumbent: Incumbent, starts: Sequence[Start]) -> None:
        self._problem, self._instance, self._incumbent = problem, instance, incumbent
        self.surrogate = instance
        self._waiting = deque(map(self._fresh, starts))
        self._in_vain: list[Start] = []

    def run(self) -> None:
        """Ask each once, in a share of the time; where there is no plan yet, until there is one."""
        incumbent, left_s = self._incumbent, self._incumbent.budget.left_s
        self._take_turns(max(PARAMS.share * left_s, min(PARAMS.least_s, PARAMS.most_share * left_s)))
        if incumbent.best is None:
            within(incumbent.budget.stop.is_set, self._on_placement)

    def go_on(self) -> None:
        """Ask those that there was no time for, and those that found no room on a placement that has it."""
        self._take_turns(PARAMS.late_share * self._incumbent.budget.left_s)
        if self._in_vain and self._instance.memory_binds and not self._incumbent.closed:
            within(lambda: not self._incumbent.budget.left_s, self._on_placement)

    def _fresh(self, start: Start) -> _Run:
        return _Run(start, attempts(self._problem, self._instance, partial(start, self._problem)))

    def _take_turns(self, share_s: float) -> None:
        """Let them take turns until their time is over, or there is none left; without a plan, up to the deadline.

        One whose schedule is behind what is known waits: a tighter surrogate seldom gives a better one. So does one
        that does not end in time.
        """
        incumbent, late = self._incumbent, list[_Run]()
        began, first_s = now(), incumbent.budget.for_first.left_s

        def is_over() -> bool:
            is_first = incumbent.best is None and not (incumbent.refused or self._in_vain)
            return incumbent.budget.stop.is_set() or now() > began + (first_s if is_first else share_s)

        while self._waiting and not incumbent.closed and not is_over():
            run = self._waiting.popleft()
            made = within(is_over, lambda run=run: [next(run.attempts, None)])  # type: ignore[misc]
            if made is None:
                late.append(self._fresh(run.start))
            elif made[0] is not None:
                (late if self._offer(run, made[0]) else self._waiting).append(run)
            elif not run.found:
                self._in_vain.append(run.start)
        self._waiting.extend(late)

    def _offer(self, run: _Run, attempt: Attempt) -> bool:
        """Offer what a heuristic has found, True if it is behind; a refused one tells that memory is short."""
        incumbent, schedule = self._incumbent, attempt.schedule
        if schedule is None:
            return False
        behind = incumbent.best is not None and schedule.makespan >= incumbent.best.makespan
        run.found |= attempt.admitted
        if incumbent.offer(schedule):
            self.surrogate = attempt.surrogate
        return behind

    def _on_placement(self) -> None:
        """Ask those that found no plan, on a placement that a search for room alone finds.

        Raises
        ------
        InfeasibleError
            If no placement exists.
        """
        incumbent, count = self._incumbent, self._problem.op_count
        without = [*self._in_vain, *(run.start for run in self._waiting if not run.found)]
        self._in_vain = []
        placement = require_placement(self._problem, PARAMS.placement_share * incumbent.budget.left_s)
        if placement is None:
            return
        blocks: dict[int, tuple[int, ...]] = {
            number: (placement[ops[0]],) for number, ops in enumerate(self._instance.members) if ops[0] < count
        }
        placed = self._instance.limited(blocks)
        until = now() + PARAMS.share * incumbent.budget.left_s
        for start in without:
            if incumbent.best is None or now() < until:
                incumbent.offer(start(self._problem, placed))
