"""The first schedules: every heuristic in turn, where memory is short on surrogates too.

As methods by themselves they get the whole limit. So that the default method is behind none of them, they come before
all that is slow, and one that takes long keeps no other from its turn.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dlplacer.problem.problem import Problem
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.feasibility import require_placement
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.memory_admission import Attempt, attempts
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, keeps_blocks_and_memory
from dlplacer.solvers.instance.time_limit import now, within

Start = Callable[[Problem, Instance], Schedule | None]
"""A heuristic; None where it runs out of memory."""


class StartMethod(NamedTuple):
    """A heuristic, and what tells when to ask it.

    Attributes
    ----------
    cost
        About how long it takes, in list schedules.
    find
        The heuristic.
    """

    cost: float
    find: Start


@dataclass(frozen=True)
class StartParams:
    """The heuristics' time. Shares are of what is left when they begin; none was tuned.

    Attributes
    ----------
    share, short_share, least_s, most_share
        For all of them once a plan is known, and where memory over time is short, so that each is asked many times; but
        so many seconds, up to a share: where time is short a search gains less than they do.
    late_share
        For those that had no time at the start.
    placement_share
        Where they find no plan: for a placement by itself.
    """

    share: float = 0.3
    short_share: float = 0.5
    least_s: float = 2.0
    most_share: float = 0.8
    late_share: float = 0.3
    placement_share: float = 0.25


PARAMS = StartParams()


@dataclass
class _Run:
    """A heuristic, its attempts that are left, and True once one of them was a plan."""

    start: StartMethod
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

    def __init__(
        self, problem: Problem, instance: Instance, incumbent: Incumbent, starts: Sequence[StartMethod]
    ) -> None:
        self._problem, self._instance, self._incumbent = problem, instance, incumbent
        self.surrogate = instance
        self._waiting = deque(map(self._fresh, starts))
        self._in_vain: list[StartMethod] = []
        self._list_s = 0.0

    def run(self) -> None:
        """Ask each once, in a share of the time; where there is no plan yet, until there is one."""
        incumbent = self._incumbent
        self._go_on(PARAMS.share)
        if incumbent.best is None:
            within(incumbent.budget.stop.is_set, self._on_placement)

    def go_on(self) -> None:
        """Ask those that there was no time for, and those that found no room on a placement that has it."""
        self._go_on(PARAMS.late_share)
        if self._in_vain and self._instance.memory_binds and not self._incumbent.closed:
            within(lambda: not self._incumbent.budget.left_s, self._on_placement)

    def _fresh(self, start: StartMethod) -> _Run:
        return _Run(start, attempts(self._problem, self._instance, partial(start.find, self._problem)))

    def _go_on(self, share: float) -> None:
        """Let them take turns until their time is over, or there is none left; without a plan, up to the deadline.

        One whose schedule is behind what is known waits: a tighter surrogate seldom gives a better one. So does one
        that would not end in time, or does not.
        """
        incumbent, late = self._incumbent, list[_Run]()
        began, left_s, first_s = now(), incumbent.budget.left_s, incumbent.budget.for_first.left_s

        def ends_at() -> float:
            if incumbent.best is None and not (incumbent.refused or self._in_vain):
                return began + first_s
            asked_s = (max(share, PARAMS.short_share) if incumbent.refused or self._in_vain else share) * left_s
            return began + max(asked_s, min(PARAMS.least_s, PARAMS.most_share * left_s))

        def is_over() -> bool:
            return incumbent.budget.stop.is_set() or now() > ends_at()

        while self._waiting and not incumbent.closed and not is_over():
            run = self._waiting.popleft()
            asked, cost = now(), run.start.cost
            if incumbent.best is not None and asked + self._list_s * cost > ends_at():
                late.append(run)
                continue
            made = within(is_over, lambda run=run: [next(run.attempts, None)])  # type: ignore[misc]
            if made is not None:
                self._list_s = max(self._list_s, (now() - asked) / cost)
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
        until = now() + PARAMS.late_share * incumbent.budget.left_s
        for start in without:
            if incumbent.best is None or now() < until:
                incumbent.offer(start.find(self._problem, placed))


def single_device(instance: Instance, incumbent: Incumbent) -> Schedule | None:
    """All ops on the device that takes least time for them and has the memory; None if that is known to be no better.

    That one device is too small for all says nothing of plans on several: such a schedule is not refused, but left out.
    """
    devices = [d for d in range(instance.device_count) if all(d in devices for devices in instance.allowed)]
    takes = {device: sum(row[device] for row in instance.duration) for device in devices}
    for device in sorted(devices, key=takes.__getitem__):
        if incumbent.best is not None and incumbent.best.makespan <= takes[device]:
            return None
        alone = in_sequence(instance, [device] * instance.op_count, instance.order)
        if keeps_blocks_and_memory(instance, alone) and incumbent.admits(alone):
            return alone
    return None
