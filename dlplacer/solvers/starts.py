"""The first schedules of a solve: every heuristic runs in turn, also on surrogates if memory is short."""

from collections.abc import Callable, Sequence
from functools import partial

from dlplacer.problem.problem import Problem
from dlplacer.solvers.feasibility import require_placement
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.memory_admission import attempts
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.instance.time_limit import now, within

Start = Callable[[Problem, Instance], Schedule | None]
"""A heuristic, which returns a schedule of the instance, or None if it finds none."""

_SHARE, _LEAST_S, _MOST_SHARE = 0.3, 2.0, 0.8
"""The heuristics' share of the remaining time. If it is shorter than `_LEAST_S` seconds, they get these seconds, up to
the share `_MOST_SHARE`, because in a short time heuristics gain more than a search."""

_LATE_SHARE, _PLACEMENT_SHARE = 0.1, 0.25
"""Shares of the remaining time: for heuristics that had no time at the start; for finding a placement if no heuristic
finds a plan."""


class StartSearch:
    """A resumable search that runs all heuristics; `surrogate` is the instance of the best schedule found."""

    def __init__(self, problem: Problem, instance: Instance, incumbent: Incumbent, starts: Sequence[Start]) -> None:
        self._problem, self._instance, self._incumbent = problem, instance, incumbent
        self.surrogate = instance
        self._waiting, self._in_vain = list(starts), list[Start]()

    def run(self) -> None:
        """Run each heuristic once within a share of the time; if none finds a plan, repeat on a placement that fits."""
        incumbent, left_s = self._incumbent, self._incumbent.budget.left_s
        self._take_turns(max(_SHARE * left_s, min(_LEAST_S, _MOST_SHARE * left_s)))
        if incumbent.best is None:
            within(incumbent.budget.stop.is_set, self._on_placement)

    def go_on(self) -> None:
        """Run the heuristics that had no time; then run those that found no plan on a placement that fits in memory."""
        self._take_turns(_LATE_SHARE * self._incumbent.budget.left_s)
        if self._in_vain and self._instance.memory_binds and not self._incumbent.closed:
            within(lambda: not self._incumbent.budget.left_s, self._on_placement)

    def _take_turns(self, share_s: float) -> None:
        """Run the waiting heuristics for `share_s`, or until the deadline for a first plan if there is none yet."""
        incumbent, waiting, began = self._incumbent, self._waiting, now()
        first_s = incumbent.budget.for_first.left_s

        def is_over() -> bool:
            is_first = incumbent.best is None and not (incumbent.refused or self._in_vain)
            return incumbent.budget.stop.is_set() or now() > began + (first_s if is_first else share_s)

        self._waiting = []
        for start in waiting:
            if incumbent.closed or within(is_over, partial(self._ask, start)) is None:
                self._waiting.append(start)

    def _ask(self, start: Start) -> bool:
        """Offer a heuristic's schedules on the instance and on surrogates."""
        found = False
        for schedule, surrogate, admitted in attempts(self._problem, self._instance, partial(start, self._problem)):
            if self._incumbent.offer(schedule):
                self.surrogate = surrogate
            found |= admitted
        if not found:
            self._in_vain.append(start)
        return True

    def _on_placement(self) -> None:
        """Run the heuristics without a plan on a placement that obeys all rules but time; InfeasibleError if none."""
        incumbent, count = self._incumbent, self._problem.op_count
        without, self._in_vain = [*self._in_vain, *self._waiting], []
        placement = require_placement(self._problem, _PLACEMENT_SHARE * incumbent.budget.left_s)
        if placement is None:
            return
        blocks = ((number, ops[0]) for number, ops in enumerate(self._instance.members) if ops[0] < count)
        placed = self._instance.limited({number: (placement[op],) for number, op in blocks})
        until = now() + _SHARE * incumbent.budget.left_s
        for start in without:
            if incumbent.best is None or now() < until:
                incumbent.offer(start(self._problem, placed))
