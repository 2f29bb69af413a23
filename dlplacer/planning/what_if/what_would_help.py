"""Changes of a graph and a machine, ranked by their gains: bounds first, then solves within a budget."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import inf
from threading import Event
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import DlplacerError, InputError, InternalError
from dlplacer.core.expect import printable
from dlplacer.core.plan import Plan
from dlplacer.core.table import Column, Table
from dlplacer.core.units import format_seconds
from dlplacer.planning.assemble import with_bound
from dlplacer.planning.warm_start import followed
from dlplacer.planning.what_if.answer import Answer, Solving, bound_of, require_consistent
from dlplacer.planning.what_if.changes import ALL_LINKS, RELAXING, Change, changes
from dlplacer.planning.what_if.other_strategies import strategies
from dlplacer.problem.problem import Problem, build_problem

_SHOWN = 16
"""Changes that a repr lists: about a screen."""

Report = Callable[[str, int, int], None]
"""Hears what is looked at, how many changes have been answered, and how many there are."""


@dataclass(frozen=True)
class WhatIfParams:
    """Shares of the time budget.

    Attributes
    ----------
    bound_s
        Seconds for the bound of one change; more of it raises the bound of 2,000 ops by less than a percent.
    looking_share
        Of the budget, for bounds; changes without a bound by then are not tried.
    base_share
        Of the budget, for the plan itself: without it, changes would get the credit for more search.
    least_s, least_s_per_op
        A solve with less time finds no more than the plan's own order does: measured at 2,000 ops, where replaying and
        checking alone take 2 s.
    tiny
        A gain that counts as none.
    """

    bound_s: float = 0.1
    looking_share: float = 0.5
    base_share: float = 0.12
    least_s: float = 0.3
    least_s_per_op: float = 1.5e-3
    tiny: float = 0.002


PARAMS = WhatIfParams()


@dataclass(frozen=True, repr=False)
class WhatWouldHelp(Shown):
    """The answers, the largest gain first, those without a step last.

    Attributes
    ----------
    base
        The plan that gains refer to: the one given, or a better one that solving again found.
    given_s
        Step time of the plan given.
    answers
        The effect of each change, against `base`.
    """

    base: Plan = field(repr=False)
    given_s: float
    answers: tuple[Answer, ...] = field(repr=False)
    seconds: float = field(default=0.0, compare=False)

    def __repr__(self) -> str:
        base_s = self.base.makespan_s
        lines = [f"<WhatWouldHelp: {len(self.answers)} changes of a step of {format_seconds(base_s)}"]
        for answer in self.answers[:_SHOWN]:
            gain = answer.gain(base_s)
            lines.append(f"  {'-' if gain is None else f'{100 * gain:.1f} %':>8}  {printable(answer.text)}")
        return "\n".join(lines) + ">"

    @property
    def table(self) -> Table:
        """A row per change, the largest gain first."""
        records = [answer.to_dict(self.base.makespan_s) for answer in self.answers]
        described = {
            "change": Column("change", "what would help"),
            "makespan_s": Column("makespan_s", "step", "seconds"),
            "gain": Column("gain", "", "change"),
            "most_gain": Column("most_gain", "at most", "change"),
            "status": Column("status", "", "text", ""),
        }
        names = ("kind", "change", "status", "makespan_s", "lower_bound_s", "gain", "most_gain", "note")
        return Table.of(records, [described.get(name, Column(name)) for name in names])

    def to_dict(self) -> dict[str, Any]:
        """The field ``what_would_help`` of ``dlplacer explain --json``."""
        base = self.base
        return {
            "base_s": base.makespan_s,
            "base_lower_bound_s": base.lower_bound_s,
            "plan_s": self.given_s,
            "seconds": self.seconds,
            "changes": [answer.to_dict(base.makespan_s) for answer in self.answers],
        }


def what_would_help(
    plan: Plan,
    budget_s: float = 60.0,
    *,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Report = lambda what, done, total: None,
    stop: Event | None = None,
) -> WhatWouldHelp:
    """The step time with one thing changed, for every change that may help.

    The changes: the busiest links twice as fast, and all of them; one more device of each type; a quarter more memory;
    each of the ten longest ops twice as fast, or in two halves; other granularities; a pipeline; data parallelism.
    First each change gets a lower bound. Then the changes with the largest possible gains are solved, each in an equal
    part of the time left, with the plan as the warm start.

    Parameters
    ----------
    budget_s
        Seconds for everything. It is exceeded by at most one step of a solve that cannot be interrupted.
    on_progress
        Called before each look and each solve.
    stop
        Once it is set, changes that have not been solved keep the answers they have.

    Raises
    ------
    InputError
        If the budget is not positive.
    """
    if not 0 < budget_s < float("inf"):
        raise InputError(f"the budget is {budget_s:g} s; it must be positive and finite")
    return _Search(Solving(plan, seed, workers, stop or Event()), budget_s, on_progress).run()


class _Search:
    """The answers so far: for every change from its bound and the plan at hand, then from solves."""

    def __init__(self, solving: Solving, budget_s: float, report: Report) -> None:
        self.solving, self.report, self.budget_s = solving, report, budget_s
        self.base, self.began = with_bound(solving.warm, 0.0), time.monotonic()
        self.answers: list[Answer] = []

    def run(self) -> WhatWouldHelp:
        given_s = self.base.makespan_s
        self._solve_base()
        found = list(changes(self.base))
        self._look_at(found)
        self.report("other strategies", len(found), 2 * len(found))
        others = list(strategies(self.base)) if self.left_s > 0 else []
        self._solve_best(found)
        self._follow_rest(found)
        answers = [*_with_all_links(self.answers), *others]
        answers.sort(key=lambda answer: (_or(answer.makespan_s, inf), _or(answer.lower_bound_s, inf)))
        return WhatWouldHelp(self.base, given_s, tuple(answers), time.monotonic() - self.began)

    @property
    def left_s(self) -> float:
        is_over = self.solving.stop is not None and self.solving.stop.is_set()
        return 0.0 if is_over else max(0.0, self.began + self.budget_s - time.monotonic())

    def _solve_base(self) -> None:
        """More search may shorten the plan itself, which no change must be praised for; and it proves a bound."""
        self.report("the plan itself", 0, 1)
        try:
            found = self.solving.place(PARAMS.base_share * self.budget_s)
        except InternalError:
            raise
        except DlplacerError:
            return
        shorter = min(found, self.solving.warm, key=lambda plan: plan.makespan_s)
        self.base = with_bound(shorter, found.lower_bound_s)
        self.solving = replace(self.solving, warm=self.base)

    def _look_at(self, found: Sequence[Change]) -> None:
        """The bound under each change; where the plan remains possible, it is what is known of the step so far."""
        until = time.monotonic() + PARAMS.looking_share * self.left_s
        base_s = self.base.makespan_s
        for number, change in enumerate(found):
            if time.monotonic() > until or not self.left_s:
                self._add(change, "not tried", note="there was no time to look at it; raise --budget")
                continue
            self.report(change.text, number, 2 * len(found))
            try:
                bound_s = bound_of(self._problem(change), PARAMS.bound_s)
            except InternalError:
                raise
            except DlplacerError as error:
                self._add(change, "not tried", note=str(error))
                continue
            status = "no gain" if bound_s >= base_s * (1 - PARAMS.tiny) else "kept"
            self._add(change, status, base_s if change.kind in RELAXING else None, bound_s)

    def _add(
        self, change: Change, status: str, step_s: float | None = None, bound_s: float | None = None, note: str = ""
    ) -> None:
        self.answers.append(Answer(change.kind, change.text, status, step_s, bound_s, note))

    def _solve_best(self, found: Sequence[Change]) -> None:
        """Solve those that may gain most, and share the time that others leave."""
        order = _in_turn(self.answers)
        least_s = PARAMS.least_s + PARAMS.least_s_per_op * len(self.base.graph.ops)
        for number, place in enumerate(order):
            rest = min(len(order) - number, max(1, int(self.left_s / least_s)))
            share_s = self.left_s / rest
            if share_s < least_s:
                break
            self.report(found[place].text, len(found) + number, len(found) + len(order))
            self.answers[place] = self._solved(found[place], self.answers[place], share_s)

    def _solved(self, change: Change, answer: Answer, seconds: float) -> Answer:
        try:
            plan = self.solving.place(seconds, *change.made())
        except InternalError:
            raise
        except DlplacerError:
            return answer
        makespan_s = min(plan.makespan_s, _or(answer.makespan_s, inf))
        bound_s = max(plan.lower_bound_s, _or(answer.lower_bound_s, 0.0))
        require_consistent(f"the change {change.text!r}", bound_s, makespan_s)
        return replace(answer, status="solved", makespan_s=makespan_s, lower_bound_s=bound_s)

    def _follow_rest(self, found: Sequence[Change]) -> None:
        """The plan's placement and order under the changes for which no solve was left, while there is time."""
        for place, answer in enumerate(self.answers):
            if answer.status == "kept" and self.left_s > 0:
                plan = followed(self._problem(found[place]), self.base)
                if plan is not None and plan.makespan_s < _or(answer.makespan_s, inf):
                    self.answers[place] = replace(answer, makespan_s=plan.makespan_s)

    def _problem(self, change: Change) -> Problem:
        return build_problem(*change.made(), self.base.options)


def _in_turn(answers: Sequence[Answer]) -> list[int]:
    """Positions of the answers that are open: of every kind the one with the lowest bound, then the second of each."""
    kinds: dict[str, list[int]] = {}
    for place in sorted(range(len(answers)), key=lambda place: _or(answers[place].lower_bound_s, 0.0)):
        if answers[place].status == "kept":
            kinds.setdefault(answers[place].kind, []).append(place)
    first = sorted(kinds.values(), key=min)
    return [place for rank in zip_longest(*first) for place in rank if place is not None]


def _with_all_links(answers: Sequence[Answer]) -> Iterator[Answer]:
    """All links faster are no worse than one of them, even where one was solved and all were not."""
    steps = [answer.makespan_s for answer in answers if answer.kind == "link" and answer.makespan_s is not None]
    for answer in answers:
        is_all = answer.text == ALL_LINKS and answer.makespan_s is not None
        yield replace(answer, makespan_s=min(steps)) if is_all else answer


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
