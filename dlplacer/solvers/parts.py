"""Searching parts of the machine by the same phases: a plan on some devices is a plan of the whole.

Bounds found there are none. So a machine is not worse than its parts, as far as the time goes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from dlplacer.problem.problem import Problem
from dlplacer.problem.restriction import on_devices
from dlplacer.problem.route_table import TimedRoute
from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.decomposition.device_subset import device_subsets
from dlplacer.solvers.feasibility.reasons import may_have_plan
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission, best_admitted
from dlplacer.solvers.instance.schedule import Schedule, sequence
from dlplacer.solvers.instance.time_limit import now, within

Search = Callable[[Problem, Instance, Incumbent], None]
"""Improves an incumbent that holds a schedule of the problem's instance."""


@dataclass(frozen=True)
class PartParams:
    """Shares of the time that is left when a step begins; none was tuned.

    Attributes
    ----------
    few
        Devices up to which a search is quick: on larger machines such parts come ahead of the machine itself.
    start_share, starts
        For heuristics on every part, and how many of them.
    op_s
        Seconds for each op to restrict a problem and to make its first list schedule. What would not fit is left out.
    ahead_margin, ahead_share, margin, share
        Parts whose heuristics are at most so much behind what is known are searched, for this share in all: ahead of
        the machine itself, and after it.
    first_share
        What the most promising of them gets, and of the rest the next.
    even
        Those at most so much behind the best of them count as equally good.
    bound_share, worth
        For a bound on each of them; those that may hold nothing better by so much are not searched.
    """

    few: int = 4
    start_share: float = 0.2
    starts: int = 3
    op_s: float = 2e-4
    ahead_margin: float = 0.1
    ahead_share: float = 0.85
    margin: float = 0.03
    share: float = 0.5
    first_share: float = 0.9
    even: float = 0.03
    bound_share: float = 0.05
    worth: float = 0.003


PARAMS = PartParams()


class Restricted:
    """A problem on some of the devices of another (`dlplacer.problem.restriction`), and the way back.

    Parameters
    ----------
    devices
        [device of the restricted problem] → device of the whole.

    Attributes
    ----------
    instance
        Of the restricted problem.
    """

    def __init__(self, problem: Problem, devices: tuple[int, ...], whole: Problem) -> None:
        self.problem, self.devices = problem, devices
        self.instance = build_instance(problem)
        self._target = build_instance(whole)
        self._routes: dict[tuple[int, TimedRoute], TimedRoute] = {}

    def of_the_whole(self, schedule: Schedule) -> Schedule:
        """Return the schedule as one of the whole; without contention everything is as early as its order allows."""
        count = self._target.op_count
        device = tuple(self.devices[here] for here in schedule.device[:count])
        if self._target.traffic is None:
            order = [op for op in sequence(self.instance, schedule.device, schedule.start) if op < count]
            return in_sequence(self._target, device, order)
        start = schedule.start[:count]
        ends = (begin + self._target.duration[op][device[op]] for op, begin in enumerate(start))
        return Schedule(device, start, max(ends), tuple(map(self._on_links_of_the_whole, schedule.transfers)))

    def _on_links_of_the_whole(self, send: ScheduledTransfer) -> ScheduledTransfer:
        traffic = self._target.traffic
        assert traffic is not None
        size = traffic.requests[send.request].size
        key = size, send.route
        if key not in self._routes:
            self._routes[key] = traffic.routes.along([segment.hops for segment in send.route], size)
        return replace(send, target=self.devices[send.target], route=self._routes[key])


class _Part:
    """A part of the machine, and the best of its own schedules so far."""

    def __init__(self, restricted: Restricted, outer: Incumbent) -> None:
        self.restricted, self._outer = restricted, outer
        self.best: Schedule | None = None
        self.searched = False

    @cached_property
    def bound(self) -> int:
        """A makespan that no schedule of the part beats."""
        return lower_bounds(self.restricted.instance, PARAMS.bound_share * self._outer.budget.left_s).makespan

    @property
    def hopeless(self) -> bool:
        """True if hardly anything there is better than what is known, or nothing better is asked for."""
        best = self._outer.best
        return self._outer.closed or best is None or self.bound >= (1 - PARAMS.worth) * best.makespan

    @property
    def makespan(self) -> float:
        """Ticks of the best schedule there, infinite without any."""
        return self.best.makespan if self.best else float("inf")

    def work(self, until: float, search: Callable[[Incumbent], None]) -> None:
        """Let a search work until then on an incumbent of the part; the schedules that it finds go to the whole's."""
        restricted, outer = self.restricted, self._outer

        def offer(schedule: Schedule) -> None:
            self.best = schedule
            outer.offer(restricted.of_the_whole(schedule))

        # Progress on a part is not that of the whole.
        budget = replace(outer.budget.unreported, deadline=min(until, outer.budget.deadline))
        inner = Incumbent(budget, admission(restricted.problem, restricted.instance), offer)
        inner.offer(self.best)
        within(lambda: outer.best is not None and not budget.left_s, partial(search, inner))


class PartSearch:
    """The search on parts of the machine.

    Parameters
    ----------
    incumbent
        Of the problem; it holds a schedule.
    starts
        Heuristics, the quick ones first.
    search
        All phases, for a part with an incumbent of its own.
    """

    def __init__(
        self,
        problem: Problem,
        instance: Instance,
        incumbent: Incumbent,
        starts: Sequence[StartMethod],
        search: Search,
    ) -> None:
        self._problem, self._instance, self._incumbent = problem, instance, incumbent
        self._starts, self._search = starts[: PARAMS.starts], search
        self._parts: dict[tuple[int, ...], _Part] = {}

    def run_ahead(self) -> None:
        """Search parts of few devices where the machine has many."""
        if self._instance.device_count > PARAMS.few:
            self._run(PARAMS.few, PARAMS.ahead_margin, PARAMS.ahead_share)

    def run(self) -> None:
        """Search the parts whose heuristics find something nearly as good as what is known."""
        self._run(self._instance.device_count, PARAMS.margin, PARAMS.share)

    def _run(self, most: int, margin: float, share: float) -> None:
        own = self._incumbent.best
        if own is None or self._incumbent.closed:
            return
        # Where time is short, the large ones count: a search gains more there.
        for devices in sorted(device_subsets(self._problem, self._instance), key=len, reverse=True):
            if len(devices) <= most and devices not in self._parts:
                self._begin(devices, now() + PARAMS.start_share * self._incumbent.budget.left_s)
        until = now() + share * self._incumbent.budget.left_s
        near = [part for part in self._parts.values() if part.makespan <= (1 + margin) * own.makespan]
        for part in sorted((part for part in near if not part.searched), key=_promise(near)):
            best = self._incumbent.best
            if part.hopeless or best is None or part.makespan > (1 + margin) * best.makespan:
                continue
            part.searched = True
            ends_at = now() + PARAMS.first_share * (until - now())
            part.work(ends_at, partial(self._search, part.restricted.problem, part.restricted.instance))

    def _begin(self, devices: tuple[int, ...], until: float) -> None:
        """Ask the first heuristics on a part."""
        if self._incumbent.closed or now() + PARAMS.op_s * self._problem.op_count > until:
            return
        problem = on_devices(self._problem, devices)
        if problem is None or not may_have_plan(problem):
            return
        part = self._parts[devices] = _Part(Restricted(problem, devices, self._problem), self._incumbent)
        if not part.hopeless:
            part.work(until, partial(_offer_starts, part.restricted, self._starts))


def _offer_starts(restricted: Restricted, starts: Sequence[StartMethod], incumbent: Incumbent) -> None:
    problem, instance = restricted.problem, restricted.instance
    for start in starts:
        # Where memory is short, a heuristic is asked many times.
        one = partial(best_admitted, problem, instance, partial(start.find, problem))
        admitted = within(lambda: not incumbent.budget.left_s, one)
        incumbent.offer(None if admitted is None else admitted[0])


def _promise(parts: Sequence[_Part]) -> Callable[[_Part], tuple[bool, bool, int, float]]:
    """The key that sorts by promise: near the best, on few devices, but as many of them as may be, what was found.

    A search gains more on more devices, where it is quick.
    """
    least = min((part.makespan for part in parts), default=0)

    def key(part: _Part) -> tuple[bool, bool, int, float]:
        count = len(part.restricted.devices)
        return part.makespan > (1 + PARAMS.even) * least, count > PARAMS.few, -count, part.makespan

    return key
