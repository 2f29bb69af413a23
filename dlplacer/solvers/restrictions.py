"""Searching a problem with less freedom first: on parts of the machine, and under stricter options.

What is found there is a plan of the problem itself; bounds found there are none. So a machine is not worse than its
parts, and an option not worse than a stricter one, as far as the time goes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dlplacer.core.options import Options
from dlplacer.problem.problem import Problem
from dlplacer.problem.restriction import on_devices, stricter_options, under
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.device_subset import device_subsets
from dlplacer.solvers.feasibility import has_room
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.memory_admission import admission, first_admitted
from dlplacer.solvers.instance.restricted import Restricted
from dlplacer.solvers.instance.schedule import Schedule

Start = Callable[[Problem, Instance], Schedule | None]
"""A heuristic; None where it runs out of memory."""

Search = Callable[[Problem, Instance, Incumbent], None]
"""Improves an incumbent that holds a schedule of the problem's instance."""


@dataclass(frozen=True)
class RestrictionParams:
    """How the time is divided. Shares are of the time that is left when a step begins; none was tuned.

    Attributes
    ----------
    start_share, starts
        For the first heuristics on every restricted problem, and how many of them.
    op_s
        Seconds for each op to restrict a problem and to make its first list schedule: 0.2 ms under load. What would not
        fit is left out.
    clear, clear_share
        Where the heuristics do so much better on a restricted problem than on the problem itself, it is searched at
        once, for this share.
    margin, share
        The others wait until the problem itself has been searched, since time spent on the segments of the whole is worth
        more than on a part: those that are at most so much behind what is known then, for this share in all.
    first_share
        What the most promising of them gets, and of the rest the next.
    bound_share
        For a bound on each of them: it may hold nothing better.
    """

    start_share: float = 0.15
    starts: int = 2
    op_s: float = 2e-4
    clear: float = 0.01
    clear_share: float = 0.7
    margin: float = 0.03
    share: float = 0.4
    first_share: float = 0.67
    bound_share: float = 0.05


PARAMS = RestrictionParams()


class RestrictionSearch:
    """The search on restricted problems.

    Parameters
    ----------
    incumbent
        Of the problem; it holds a schedule.
    starts
        Heuristics, the quick ones first.
    search, polish
        For a restricted problem, with an incumbent of its own: all phases, and those alone that improve schedules.
    """

    def __init__(
        self,
        problem: Problem,
        instance: Instance,
        incumbent: Incumbent,
        starts: Sequence[Start],
        search: Search,
        polish: Search,
    ) -> None:
        self._problem, self._instance, self._incumbent, self._starts = problem, instance, incumbent, starts
        self._search, self._polish = search, polish
        self._begun: list[tuple[Restricted, Incumbent]] = []
        self._searched: list[tuple[Restricted, Incumbent]] = []

    def begin(self) -> None:
        """Offer what the first heuristics find on every restricted problem; search on where that is far better."""
        incumbent, own = self._incumbent, self._incumbent.best
        if own is None:
            return
        until = time.monotonic() + PARAMS.start_share * incumbent.budget.left_s
        for build in _restrictions(self._problem, self._instance):
            if incumbent.closed or time.monotonic() + PARAMS.op_s * self._problem.op_count > until:
                break
            restricted = build()
            if restricted is not None:
                inner = _inner(restricted, incumbent, until)
                _offer_starts(restricted, inner, self._starts[: PARAMS.starts], until)
                self._begun.append((restricted, inner))
        if incumbent.best is not None and incumbent.best.makespan < (1 - PARAMS.clear) * own.makespan:
            self._search_near(PARAMS.clear, PARAMS.clear_share)

    def go_on(self) -> None:
        """Improve what a search of restricted problems found, if that is the best; search those nearly as good."""
        best = self._incumbent.best
        home = next((one for one in self._searched if _leads(one[1], best)), None)
        if home is not None:
            restricted, found = home
            inner = _inner(restricted, self._incumbent, self._until(PARAMS.clear_share))
            inner.offer(found.best)
            self._polish(restricted.problem, restricted.instance, inner)
        self._search_near(PARAMS.margin, PARAMS.share)

    def _search_near(self, margin: float, share: float) -> None:
        """The best restricted problem gets two thirds of the time, the next as much of the rest, and so on."""
        until = self._until(share)
        for entry in sorted(self._begun, key=_promise):
            restricted, begun = entry
            if not _promises(restricted, begun, self._incumbent, margin):
                continue
            inner = _inner(
                restricted, self._incumbent, time.monotonic() + PARAMS.first_share * (until - time.monotonic())
            )
            inner.offer(begun.best)
            later = time.monotonic() + PARAMS.start_share * inner.budget.left_s
            _offer_starts(restricted, inner, self._starts[PARAMS.starts :], later)
            self._search(restricted.problem, restricted.instance, inner)
            self._begun.remove(entry)
            self._searched.append((restricted, inner))

    def _until(self, share: float) -> float:
        return time.monotonic() + share * self._incumbent.budget.left_s


def _restrictions(problem: Problem, instance: Instance) -> list[Callable[[], Restricted | None]]:
    parts = [partial(_part, problem, devices) for devices in device_subsets(problem, instance)]
    return [*parts, *(partial(_strict, problem, options) for options in stricter_options(problem))]


def _part(problem: Problem, devices: tuple[int, ...]) -> Restricted | None:
    part = on_devices(problem, devices)
    return None if part is None or not has_room(part) else Restricted(part, devices, problem)


def _strict(problem: Problem, options: Options) -> Restricted | None:
    strict = under(problem, options)
    return Restricted(strict, tuple(range(problem.device_count)), problem) if has_room(strict) else None


def _inner(restricted: Restricted, outer: Incumbent, until: float) -> Incumbent:
    """An incumbent of the restricted problem: its schedules go to the whole's incumbent, its bounds do not."""

    def offer(schedule: Schedule) -> None:
        for found in restricted.schedules(schedule):
            outer.offer(found)

    # Progress on a part is not that of the whole.
    budget = replace(outer.budget, deadline=min(until, outer.budget.deadline), report=lambda makespan, bound: None)
    return Incumbent(budget, admission(restricted.problem, restricted.instance), offer)


def _offer_starts(restricted: Restricted, inner: Incumbent, starts: Sequence[Start], until: float) -> None:
    problem, instance = restricted.problem, restricted.instance

    def in_time(start: Start, surrogate: Instance) -> Schedule | None:
        # Where memory is short, a heuristic is asked many times.
        return start(problem, surrogate) if time.monotonic() < until else None

    for start in starts:
        admitted = first_admitted(problem, instance, partial(in_time, start))
        inner.offer(None if admitted is None else admitted[0])


def _leads(inner: Incumbent, best: Schedule | None) -> bool:
    return inner.best is not None and best is not None and inner.best.makespan <= best.makespan


def _promise(entry: tuple[Restricted, Incumbent]) -> tuple[float, int]:
    """Ascending: what was found there; where that is the same, the fewer devices the better they are searched."""
    restricted, inner = entry
    return inner.best.makespan if inner.best else float("inf"), len(restricted.devices)


def _promises(restricted: Restricted, begun: Incumbent, incumbent: Incumbent, margin: float) -> bool:
    """Whether a search may find something better there in a time worth spending."""
    best = incumbent.best
    if incumbent.closed or begun.best is None or best is None:
        return False
    if begun.best.makespan > (1 + margin) * best.makespan:
        return False
    return lower_bounds(restricted.instance, PARAMS.bound_share * incumbent.budget.left_s).makespan < best.makespan
