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
    start_share, starts, more_starts_share
        For the first heuristics on every restricted problem, and how many of them; for the others where it is searched.
    op_s
        Seconds for each op to restrict a problem and to make its first list schedule: 0.2 ms under load. What would not
        fit is left out.
    margin, share
        Those at most so much behind what is known are searched, for this share in all.
    margin_ahead, share_ahead
        The same ahead of all other search, when only heuristics are known, which on eight GPUs are 4 % better than on
        the four where a search finds most.
    clear, clear_share
        Where the heuristics do so much better on a restricted problem than was known, it is this share.
    few
        Up to so many devices all routes are looked at; forward graphs with branches gain nothing beyond about three.
    first_share
        What the most promising of them gets, and of the rest the next.
    bound_share
        For a bound on each of them: it may hold nothing better.
    """

    start_share: float = 0.15
    starts: int = 2
    more_starts_share: float = 0.05
    op_s: float = 2e-4
    clear: float = 0.01
    clear_share: float = 0.7
    margin: float = 0.03
    share: float = 0.4
    margin_ahead: float = 0.1
    share_ahead: float = 0.75
    few: int = 4
    first_share: float = 0.8
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
    search
        All phases, for a restricted problem with an incumbent of its own.
    """

    def __init__(
        self, problem: Problem, instance: Instance, incumbent: Incumbent, starts: Sequence[Start], search: Search
    ) -> None:
        self._problem, self._instance, self._incumbent, self._starts = problem, instance, incumbent, starts
        self._search = search
        self._seen: set[tuple[int, ...]] = set()

    def run_ahead(self) -> None:
        """Before the problem itself is searched: search the parts of as many devices as a search is quick on."""
        subsets = device_subsets(self._problem, self._instance)
        most = max((len(devices) for devices in subsets if len(devices) <= PARAMS.few), default=0)
        parts = [partial(_part, self._problem, devices) for devices in subsets if len(devices) == most]
        self._run(parts, PARAMS.margin_ahead, PARAMS.share_ahead)

    def run(self) -> None:
        """Offer what the first heuristics find on every restricted problem; search where that is nearly as good."""
        subsets = device_subsets(self._problem, self._instance)
        parts = [partial(_part, self._problem, devices) for devices in subsets if devices not in self._seen]
        strict = [partial(_strict, self._problem, options) for options in stricter_options(self._problem)]
        self._run([*parts, *strict], PARAMS.margin, PARAMS.share)

    def _run(self, restrictions: Sequence[Callable[[], Restricted | None]], margin: float, share: float) -> None:
        own = self._incumbent.best
        if own is None or self._incumbent.closed:
            return
        begun = self._begin(restrictions)
        best = self._incumbent.best
        better = best is not None and best.makespan < (1 - PARAMS.clear) * own.makespan
        self._search_near(begun, margin, PARAMS.clear_share if better else share)

    def _begin(self, restrictions: Sequence[Callable[[], Restricted | None]]) -> list[tuple[Restricted, Incumbent]]:
        incumbent, begun = self._incumbent, []
        until = time.monotonic() + PARAMS.start_share * incumbent.budget.left_s
        for build in restrictions:
            if incumbent.closed or time.monotonic() + PARAMS.op_s * self._problem.op_count > until:
                break
            restricted = build()
            if restricted is not None:
                inner = _inner(restricted, incumbent, until)
                _offer_starts(restricted, inner, self._starts[: PARAMS.starts], until)
                begun.append((restricted, inner))
                self._seen.add(restricted.devices)
        return begun

    def _search_near(self, several: Sequence[tuple[Restricted, Incumbent]], margin: float, share: float) -> None:
        """The best restricted problem gets most of the time, the next as much of the rest, and so on."""
        until = time.monotonic() + share * self._incumbent.budget.left_s
        first_share = PARAMS.first_share if len(several) > 1 else 1.0
        for restricted, begun in sorted(several, key=_promise):
            if not _promises(restricted, begun, self._incumbent, margin):
                continue
            inner = _inner(restricted, self._incumbent, time.monotonic() + first_share * (until - time.monotonic()))
            inner.offer(begun.best)
            later = time.monotonic() + PARAMS.more_starts_share * inner.budget.left_s
            _offer_starts(restricted, inner, self._starts[PARAMS.starts :], later)
            self._search(restricted.problem, restricted.instance, inner)


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


def _promise(entry: tuple[Restricted, Incumbent]) -> tuple[bool, int, float]:
    """Ascending: few devices, but as many of them as may be, as a search gains more there; then what was found."""
    restricted, inner = entry
    count = len(restricted.devices)
    return count > PARAMS.few, -count, inner.best.makespan if inner.best else float("inf")


def _promises(restricted: Restricted, begun: Incumbent, incumbent: Incumbent, margin: float) -> bool:
    """Whether a search may find something better there in a time worth spending."""
    best = incumbent.best
    if incumbent.closed or begun.best is None or best is None:
        return False
    if begun.best.makespan > (1 + margin) * best.makespan:
        return False
    return lower_bounds(restricted.instance, PARAMS.bound_share * incumbent.budget.left_s).makespan < best.makespan
