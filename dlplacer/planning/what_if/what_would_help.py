"""Changes of a graph and a machine, ranked by what they bring: bounds first, then solves within a budget."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from threading import Event
from typing import TYPE_CHECKING, Any

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import DlplacerError, InputError, InternalError
from dlplacer.core.expect import printable
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.planning.assemble import contradicts, with_bound
from dlplacer.planning.place import place
from dlplacer.planning.warm_start import followed
from dlplacer.planning.what_if.change import Answer, Change
from dlplacer.planning.what_if.machine_changes import ALL_LINKS, faster_links, more_devices, more_memory
from dlplacer.planning.what_if.op_changes import coarser, faster_ops, split_ops
from dlplacer.planning.what_if.other_strategies import strategies
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.instance.instance import build_instance

if TYPE_CHECKING:
    import pandas

_SHOWN = 16
"""Changes that a repr lists: about a screen."""

Report = Callable[[str, int, int], None]
"""Hears what is looked at, how many changes have been answered, and how many there are."""


@dataclass(frozen=True)
class WhatIfParams:
    """How a budget is spread.

    Attributes
    ----------
    bound_s
        Seconds for the bound of one change; more of it raises the bound of 2,000 ops by less than a percent.
    looking_share
        Of the budget, for bounds; what is not looked at by then is not tried.
    base_share
        Of the budget, for the plan itself: without it, changes would be praised for what more search brings.
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

_RELAXING = ("link", "device", "memory", "op", "split")
"""Kinds of change under which the plan as it is remains possible, and no longer."""


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
        What each change brings, against `base`.
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

    def to_frame(self) -> "pandas.DataFrame":
        """A row per change, the largest gain first: step in seconds, gain and its bound as ratios, status and note."""
        import pandas

        return pandas.DataFrame([answer.to_dict(self.base.makespan_s) for answer in self.answers])

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
    """What the step would take with one thing changed, for every change that may bring something.

    Looked at: the busiest links twice as fast, and all of them; one more device of each type; a quarter more memory;
    each of the ten longest ops twice as fast, or in two halves; other granularities; a pipeline; data parallelism.
    First each change gets a lower bound. Then the changes with the largest gains left open are solved, each in an equal
    part of what is left, beginning with the plan.

    Parameters
    ----------
    budget_s
        Seconds for everything. It is exceeded by at most one step of a solve that cannot be interrupted.
    on_progress
        Called before each look and each solve.
    stop
        Once it is set, what has not been solved keeps the answer that it has.

    Raises
    ------
    InputError
        If the budget is not positive.
    """
    if not 0 < budget_s < float("inf"):
        raise InputError(f"the budget is {budget_s:g} s; it must be positive and finite")
    return _Search(plan, budget_s, seed, workers, on_progress, stop or Event()).run()


class _Search:
    def __init__(
        self, plan: Plan, budget_s: float, seed: int, workers: int | None, report: Report, stop: Event
    ) -> None:
        self.plan, self.base, self.seed, self.workers, self.stop = plan, with_bound(plan, 0.0), seed, workers, stop
        self.report = report
        self.began = time.monotonic()
        self.deadline = self.began + budget_s
        self.budget_s = budget_s
        self.least_s = PARAMS.least_s + PARAMS.least_s_per_op * len(plan.graph.ops)

    def run(self) -> WhatWouldHelp:
        self._solve_base()
        changes = list(_changes(self.base))
        looked = list(self._look_at_all(changes))
        self.report("other strategies", len(changes), 2 * len(changes))
        others = list(strategies(self.base)) if self.left_s > 0 else []
        answers = self._solve_best(looked)
        self._follow_rest(looked, answers)
        answers = [*_with_all_links(answers), *others]
        worst = float("inf")
        answers.sort(key=lambda answer: (_or(answer.makespan_s, worst), _or(answer.lower_bound_s, worst)))
        return WhatWouldHelp(self.base, self.plan.makespan_s, tuple(answers), time.monotonic() - self.began)

    @property
    def left_s(self) -> float:
        return 0.0 if self.stop.is_set() else max(0.0, self.deadline - time.monotonic())

    def _solve_base(self) -> None:
        """More search may shorten the plan itself, which no change must be praised for; and it proves a bound."""
        self.report("the plan itself", 0, 1)
        found = self._placed(self.plan, PARAMS.base_share * self.budget_s)
        if isinstance(found, Plan):
            shorter = found if found.makespan_s <= self.plan.makespan_s else self.plan
            self.base = with_bound(shorter, found.lower_bound_s)

    def _look_at_all(self, changes: list[Change]) -> Iterator[tuple[Change, Answer]]:
        until = time.monotonic() + PARAMS.looking_share * self.left_s
        for number, change in enumerate(changes):
            if time.monotonic() > until or self.stop.is_set():
                note = "there was no time to look at it; raise --budget"
                yield change, Answer(change.kind, change.text, "not tried", note=note)
                continue
            self.report(change.text, number, 2 * len(changes))
            yield change, self._looked(change)

    def _looked(self, change: Change) -> Answer:
        """The bound under a change; where the plan remains possible, it is what is known of the step so far."""
        name = change.kind, change.text
        try:
            problem = self._problem(change)
            bound = lower_bounds(build_instance(problem), PARAMS.bound_s).makespan
        except InternalError:
            raise
        except DlplacerError as error:
            return Answer(*name, "not tried", note=str(error))
        bound_s = float(bound * problem.tick_s)
        kept_s = self.base.makespan_s if change.kind in _RELAXING else None
        if bound_s >= self.base.makespan_s * (1 - PARAMS.tiny):
            return Answer(*name, "no gain", kept_s, bound_s)
        return Answer(*name, "kept", kept_s, bound_s)

    def _solve_best(self, looked: list[tuple[Change, Answer]]) -> list[Answer]:
        """Solve those that may gain most, and share the time that others leave."""
        answers = [answer for _, answer in looked]
        order = _in_turn(answers)
        for number, place_ in enumerate(order):
            rest = min(len(order) - number, max(1, int(self.left_s / self.least_s)))
            share_s = self.left_s / rest
            if share_s < self.least_s:
                break
            change, answer = looked[place_]
            self.report(change.text, len(looked) + number, len(looked) + len(order))
            answers[place_] = self._solved(change, answer, share_s)
        return answers

    def _follow_rest(self, looked: list[tuple[Change, Answer]], answers: list[Answer]) -> None:
        """The plan's placement and order under the changes for which no solve was left, while there is time."""
        for place_, (change, _) in enumerate(looked):
            answer = answers[place_]
            if answer.status == "kept" and self.left_s > 0:
                found = followed(self._problem(change), self.base)
                if found is not None and found.makespan_s < _or(answer.makespan_s, float("inf")):
                    answers[place_] = replace(answer, makespan_s=found.makespan_s)

    def _solved(self, change: Change, answer: Answer, seconds: float) -> Answer:
        try:
            graph, topology = change.made()
        except DlplacerError as error:
            return Answer(change.kind, change.text, "not tried", note=str(error))
        found = self._placed(self.base, seconds, graph, topology)
        if not isinstance(found, Plan):
            return answer
        makespan_s = min(found.makespan_s, _or(answer.makespan_s, found.makespan_s))
        bound_s = max(found.lower_bound_s, _or(answer.lower_bound_s, 0.0))
        if contradicts(bound_s, makespan_s):
            raise InternalError(
                f"with the change {change.text!r} the lower bound is {bound_s:.9g} s, above the {makespan_s:.9g} s of "
                "a plan; please report it"
            )
        return Answer(change.kind, change.text, "solved", makespan_s, bound_s)

    def _placed(self, warm: Plan, seconds: float, graph: Any = None, topology: Any = None) -> Plan | str:
        """The plan of a solve that begins with a plan, or why there is none."""
        try:
            return place(
                graph or warm.graph,
                topology or warm.topology,
                warm.options,
                time_limit_s=seconds,
                seed=self.seed,
                workers=self.workers,
                stop=self.stop,
                warm_start=warm,
            ).plan
        except InternalError:
            raise
        except DlplacerError as error:
            return str(error)

    def _problem(self, change: Change) -> Problem:
        graph, topology = change.made()
        return build_problem(graph, topology, self.base.options)


def _changes(plan: Plan) -> Iterator[Change]:
    """In the order in which they are looked at: what a budget that is too small leaves out comes last."""
    of_machine = chain(faster_links(plan), more_devices(plan), more_memory(plan), coarser(plan))
    return chain(of_machine, split_ops(plan), faster_ops(plan))


def _in_turn(answers: Sequence[Answer]) -> list[int]:
    """Positions of the answers that are open: of every kind the one with the lowest bound, then the second of each."""
    kinds: dict[str, list[int]] = {}
    for place_, answer in enumerate(answers):
        if answer.status == "kept":
            kinds.setdefault(answer.kind, []).append(place_)
    for places in kinds.values():
        places.sort(key=lambda place_: _or(answers[place_].lower_bound_s, 0.0))
    return [place_ for rank in zip_longest(*kinds.values()) for place_ in rank if place_ is not None]


def _with_all_links(answers: Sequence[Answer]) -> list[Answer]:
    """All links faster are no worse than one of them, even where one was solved and all were not."""
    steps = [answer.makespan_s for answer in answers if answer.kind == "link" and answer.makespan_s is not None]
    return [
        replace(answer, makespan_s=min(steps)) if answer.text == ALL_LINKS and answer.makespan_s is not None else answer
        for answer in answers
    ]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
