"""Searching a problem with less freedom first: on parts of the machine, and under stricter options.

What is found there is a plan of the problem itself; bounds found there are none. So a machine is not worse than its
parts, and an option not worse than a stricter one, as far as the time goes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from dlplacer.core.options import Options
from dlplacer.problem.problem import Problem
from dlplacer.problem.restriction import on_devices, stricter_options, under
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.device_subset import device_subsets
from dlplacer.solvers.feasibility.simple_reasons import may_have_plan
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.heuristics.start_method import Start, StartMethod
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.memory_admission import admission, best_admitted
from dlplacer.solvers.instance.restricted import Restricted
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import within

Search = Callable[[Problem, Instance, Incumbent], None]
"""Improves an incumbent that holds a schedule of the problem's instance."""


@dataclass(frozen=True)
class RestrictionParams:
    """How the time is divided. Shares are of the time that is left when a step begins; none was tuned.

    Attributes
    ----------
    start_share, starts, more_starts_share
        For the first heuristics on every restricted problem, and how many of them; for the others where it is searched.
    reluctant_share
        Of what is left for these, for those in machine code that are not published ones.
    op_s
        Seconds for each op to restrict a problem and to make its first list schedule: 0.2 ms under load. What would not
        fit is left out.
    margin, share
        Those at most so much behind what is known are searched, for this share in all.
    race_starts, restarts, gain
        What the heuristics may take of a race, and the number of restarts in its first round. Restarts took a stencil
        on two GPUs from 57.7 to 52.0 ms within 40 ms, and windows brought nothing more. Where a round gains less there
        are no more of them: on Inception it gains nothing.
    even
        Those at most so much behind the best of them count as equally good.
    clear, clear_share
        Where the heuristics do so much better on a restricted problem than was known, it is this share.
    few
        Up to so many devices all routes are looked at; forward graphs with branches gain nothing beyond about three.
    first_share
        What the most promising of them gets, and of the rest the next.
    bound_share, worth
        For a bound on each of them; those that may hold nothing better by so much are not searched: one host of eight
        was within 0.002 % of its own bound after its heuristics, and took half of the time.
    """

    start_share: float = 0.2
    starts: int = 3
    more_starts_share: float = 0.05
    reluctant_share: float = 0.2
    op_s: float = 2e-4
    clear: float = 0.01
    clear_share: float = 0.7
    margin: float = 0.03
    share: float = 0.4
    race_starts: float = 0.4
    restarts: int = 30
    gain: float = 0.003
    even: float = 0.03
    few: int = 4
    first_share: float = 0.9
    bound_share: float = 0.05
    worth: float = 0.003


PARAMS = RestrictionParams()


@dataclass(frozen=True)
class AheadParams:
    """How parts are searched ahead of the machine itself.

    Attributes
    ----------
    margin
        Those at most so much behind what the machine's own heuristics found are searched; negative: ahead of it.
    share
        For these searches.
    race_share
        For heuristics and restarts on every part, before one of them is chosen.
    catches_up
        Those more than so much behind after their heuristics get no restarts, which gain 12 % on a stencil.
    """

    margin: float = 0.1
    share: float = 0.85
    race_share: float = 0.2
    catches_up: float = 0.2


ON_FEW_DEVICES = AheadParams(margin=-0.03, race_share=0.1, catches_up=0.05)
"""Inception's training step on four GPUs takes 69.3 ms after 25 s so, 75.1 if parts come first."""

ON_MANY_DEVICES = AheadParams()
"""On eight GPUs with contended links it takes 69.7 ms so, 72.6 if the machine comes first."""


class _Entry:
    """A restricted problem, the best of its own schedules so far, and the heuristics that have not been asked yet."""

    def __init__(self, restricted: Restricted, outer: Incumbent) -> None:
        self.restricted, self._outer = restricted, outer
        self.best: Schedule | None = None
        self.more: Sequence[Start] = ()
        self.searched = False
        self._phases = 0

    @cached_property
    def bound(self) -> int:
        """A makespan that no schedule of the restricted problem beats."""
        return lower_bounds(self.restricted.instance, PARAMS.bound_share * self._outer.budget.left_s).makespan

    def hopeless(self, margin: float = 0.0) -> bool:
        """Whether nothing there is better by more than a margin than what is known, or nothing better is asked for."""
        best = self._outer.best
        return self._outer.closed or best is None or self.bound >= (1 - margin) * best.makespan

    @property
    def makespan(self) -> float:
        """Ticks of the best schedule there, infinite without any."""
        return self.best.makespan if self.best else float("inf")

    def work(self, until: float, phase: Callable[[Incumbent], None]) -> None:
        """Let a phase work until then on an incumbent of the restricted problem, and keep what it finds.

        Schedules go to the whole's incumbent, bounds do not.
        """
        restricted, outer = self.restricted, self._outer

        def offer(schedule: Schedule) -> None:
            self.best = schedule
            for found in restricted.schedules(schedule):
                outer.offer(found)

        # Progress on a part is not that of the whole.
        budget = replace(
            outer.budget.unreported,
            deadline=min(until, outer.budget.deadline),
            seed=outer.budget.seed + self._phases,
        )
        self._phases += 1
        inner = Incumbent(budget, admission(restricted.problem, restricted.instance), offer)
        inner.offer(self.best)
        within(lambda: outer.best is not None and not budget.left_s, partial(phase, inner))


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
    compiled
        Whether there is time for heuristics in machine code.
    """

    def __init__(
        self,
        problem: Problem,
        instance: Instance,
        incumbent: Incumbent,
        starts: Sequence[StartMethod],
        search: Search,
        compiled: bool = False,
    ) -> None:
        self._problem, self._instance, self._incumbent, self._starts = problem, instance, incumbent, starts
        self._search, self._compiled = search, compiled
        self._entries: list[_Entry] = []

    def run_ahead(self) -> None:
        """Before the problem itself is searched: search the parts of as few devices as a search is quick on."""
        params = ON_FEW_DEVICES if self._instance.device_count <= PARAMS.few else ON_MANY_DEVICES
        subsets = [devices for devices in device_subsets(self._problem, self._instance) if len(devices) <= PARAMS.few]
        begun = self._incumbent.best
        # Where time is short, the large ones count: a search gains more there.
        self._begin([partial(_part, self._problem, devices) for devices in sorted(subsets, key=len, reverse=True)])
        if begun is not None:
            self._race(params)
            self._search_near(begun.makespan, params.margin, params.share)

    def run(self) -> None:
        """Offer what the first heuristics find on every restricted problem; search where that is nearly as good."""
        seen = {entry.restricted.devices for entry in self._entries}
        subsets = [devices for devices in device_subsets(self._problem, self._instance) if devices not in seen]
        parts = [partial(_part, self._problem, devices) for devices in subsets]
        strict = [partial(_strict, self._problem, options) for options in stricter_options(self._problem)]
        own = self._incumbent.best
        if own is None or self._incumbent.closed:
            return
        self._begin([*parts, *strict])
        best = self._incumbent.best
        better = best is not None and best.makespan < (1 - PARAMS.clear) * own.makespan
        self._search_near(own.makespan, PARAMS.margin, PARAMS.clear_share if better else PARAMS.share)

    def _begin(self, restrictions: Sequence[Callable[[], Restricted | None]]) -> None:
        """The first heuristics on every restricted problem."""
        incumbent = self._incumbent
        until = time.monotonic() + PARAMS.start_share * incumbent.budget.left_s
        for build in restrictions:
            if incumbent.closed or time.monotonic() + PARAMS.op_s * self._problem.op_count > until:
                break
            restricted = build()
            if restricted is not None:
                entry = _Entry(restricted, incumbent)
                self._entries.append(entry)
                if not entry.hopeless(PARAMS.clear):
                    self._offer_first(entry, until)

    def _race(self, params: AheadParams) -> None:
        """All heuristics on every restricted problem, then restarts on those that are near while these bring much.

        From round to round half as many problems get three times as many restarts each.
        """
        began, rounds = time.monotonic(), PARAMS.restarts
        ends_at = began + params.race_share * self._incumbent.budget.left_s
        self._equally(self._entries, began + PARAMS.race_starts * (ends_at - began), self._offer_more_starts)
        near = self._near(self._entries, params.catches_up)
        while near and time.monotonic() < ends_at:
            left, before = ends_at - time.monotonic(), [entry.makespan for entry in near]
            until = time.monotonic() + (left / 2 if len(near) > 1 else left)
            self._equally(near, until, partial(_restart, rounds))
            pairs = zip(near, before, strict=True)
            gained = [entry for entry, known in pairs if entry.makespan < (1 - PARAMS.gain) * known]
            near = sorted(gained, key=lambda entry: entry.makespan)[: max(1, len(near) // 2)]
            rounds *= 3

    def _near(self, entries: Sequence[_Entry], margin: float) -> list[_Entry]:
        best = self._incumbent.best
        return [entry for entry in entries if best and entry.makespan <= (1 + margin) * best.makespan]

    def _equally(self, entries: Sequence[_Entry], ends_at: float, phase: Callable[[_Entry, float], None]) -> None:
        """A phase on each of them, for an equal share of the time; what one does not use the others get."""
        for number, entry in enumerate(entries):
            if entry.best is not None and not entry.hopeless(PARAMS.clear):
                now = time.monotonic()
                phase(entry, now + (ends_at - now) / (len(entries) - number))

    def _offer_first(self, entry: _Entry, until: float) -> None:
        """The heuristics in machine code, or the quick ones in Python where there are none or they find no room."""
        if self._compiled:
            entry.work(until, partial(_offer_compiled, entry.restricted))
        if entry.best is not None:
            entry.more = [start.find for start in self._starts if not start.in_machine_code]
        else:
            starts = [start.find for start in self._starts]
            self._offer_starts(entry, starts[: PARAMS.starts], until)
            entry.more = starts[PARAMS.starts :]

    def _offer_more_starts(self, entry: _Entry, until: float) -> None:
        starts, entry.more = entry.more, ()
        self._offer_starts(entry, starts, until)

    def _search_near(self, own: float, margin: float, share: float) -> None:
        """The best restricted problem gets most of the time, the next as much of the rest, and so on."""
        until = time.monotonic() + share * self._incumbent.budget.left_s
        near = [entry for entry in self._entries if not entry.searched and entry.makespan <= (1 + margin) * own]
        first_share = PARAMS.first_share if len(near) > 1 else 1.0
        for entry in sorted(near, key=_promise(near)):
            best = self._incumbent.best
            if entry.hopeless(PARAMS.worth) or best is None or entry.makespan > (1 + max(0.0, margin)) * best.makespan:
                continue
            entry.searched = True
            ends_at = time.monotonic() + first_share * (until - time.monotonic())
            self._offer_more_starts(entry, time.monotonic() + PARAMS.more_starts_share * (ends_at - time.monotonic()))
            entry.work(ends_at, partial(self._search, entry.restricted.problem, entry.restricted.instance))

    def _offer_starts(self, entry: _Entry, starts: Sequence[Start], until: float) -> None:
        problem, instance = entry.restricted.problem, entry.restricted.instance

        def in_time(start: Start, surrogate: Instance) -> Schedule | None:
            # Where memory is short, a heuristic is asked many times.
            return within(lambda: time.monotonic() > until, partial(start, problem, surrogate))

        def offer(inner: Incumbent) -> None:
            for start in starts:
                admitted = best_admitted(problem, instance, partial(in_time, start))
                inner.offer(None if admitted is None else admitted[0])

        entry.work(until, offer)


def _part(problem: Problem, devices: tuple[int, ...]) -> Restricted | None:
    part = on_devices(problem, devices)
    return None if part is None or not may_have_plan(part) else Restricted(part, devices, problem)


def _strict(problem: Problem, options: Options) -> Restricted | None:
    strict = under(problem, options)
    return Restricted(strict, tuple(range(problem.device_count)), problem) if may_have_plan(strict) else None


def _offer_compiled(restricted: Restricted, incumbent: Incumbent) -> None:
    """Heuristics in machine code, unless memory is so short that they find no plan at once."""
    from dlplacer.solvers.local_search.greedy_schedules import CompiledHeuristics

    instance, left_s = restricted.instance, incumbent.budget.left_s
    compiled = CompiledHeuristics.of(instance)
    if compiled is not None and compiled.finds_room(restricted.problem, incumbent):
        compiled.offer(incumbent, [range(instance.device_count)], left_s, PARAMS.reluctant_share * left_s)


def _restart(rounds: int, entry: _Entry, until: float) -> None:
    instance = entry.restricted.instance
    entry.work(until, lambda inner: improve(instance, inner, inner.budget.left_s, rounds))


def _promise(entries: Sequence[_Entry]) -> Callable[[_Entry], tuple[bool, bool, int, float]]:
    """The key that sorts by promise: near the best, on few devices, but as many of them as may be, what was found.

    A search gains more on more devices, where it is quick.
    """
    least = min((entry.makespan for entry in entries), default=0)

    def key(entry: _Entry) -> tuple[bool, bool, int, float]:
        count = len(entry.restricted.devices)
        return entry.makespan > (1 + PARAMS.even) * least, count > PARAMS.few, -count, entry.makespan

    return key
