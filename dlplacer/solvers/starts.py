"""The first schedules: every heuristic, where memory is short on surrogates too, whoever has used least time first.

As methods by themselves they get the whole limit. So that the default method is behind none of them, they come before
all that is slow, and one that takes long keeps no other from its turn.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from dlplacer.problem.problem import Problem
from dlplacer.solvers.feasibility.explanation import require_placement
from dlplacer.solvers.feasibility.graph_size import EXACT_UP_TO
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.memory_admission import Attempt, attempts
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.instance.schedule import Schedule, in_sequence, keeps_blocks_and_memory
from dlplacer.solvers.instance.time_limit import within


@dataclass(frozen=True)
class StartParams:
    """How long heuristics may take. Shares are of the time that is left when they begin.

    Attributes
    ----------
    share, least_s, short_share
        For one schedule of each; they give 34 to 92 % of what the plan gains in all, and take 0.3 s on 200 ops, 5 s on
        2,000 and eight devices. There 0.4 would take from a search on four of the devices what it ends with. But where
        time is short a search gains less than they do: they have so many seconds, up to a share.
    each_share
        For the first schedule of each, unless list schedules in machine code are known: a heuristic that is left out
        may find what no search of the rest does.
    first_share
        For the first schedule, where any other plan is known: a list schedule of 10,000 ops on 32 devices takes half a
        minute. Where there is no time for it there is none for any other, and one device is all that is left: with half
        of the time 6,000 ops of a stencil on eight devices took 13 s where a list schedule takes 3.4.
    memory_share
        Where memory over time is short: for one schedule of each, and for surrogates of those that are not behind. The
        others wait until the first round of search is over, but for `share`: they took 6 of 15 s for Inception's
        training step on two GPUs that barely hold it, whose plans became 1.4 to 2.3 % shorter so.
    late_share
        For those that had no time at the start.
    timed_from
        Ops × devices up to which the first two run whatever they take, as no plan at all is worse than a late one.
        Above it a list schedule foretells all of them.
    pace_s, pace_spread
        Seconds of a list schedule per op and device, at least, and the factor up to which it may take more (2.3 on a
        cluster). Where list schedules in machine code are known and this is more than `share`, only one that ends even
        so begins early: on 106,000 ops and four devices two were cut off after 9 s, and one after 10 where cores are
        slow.
    quick_below
        Cost, in list schedules, below which a heuristic places first and schedules once. Where a list schedule might
        not end in time, one that is otherwise quicker comes ahead of it, and one of these: on 6,000 ops and a cluster
        of eight devices it takes 3.2 s, ETF 0.7, a partition 0.35.
    placing_spread, late_s
        The factor up to which a partition may take more than foretold, and how late both may be in all: for 10,000 ops
        on eight devices and a limit of 2 s ETF by itself takes 4.1, and its plan takes a fifth of a partition's.
    placement_share
        For a placement by itself, where the heuristics find no room.
    room_share, large_room_share, room_up_to, in_vain_share
        Where they find none on it either: for a search for any plan, and of more ops than so many, of which it tries
        few; and when that begins without a plan at the latest, where ops are no more, but after `least_s` where time is
        short.
    room_op_s
        Seconds for each op that this search may take at first, where a model follows that proves that there is no plan,
        or finds one by routes that the search does not know: two ops around full relays took half of the time else.
    """

    share: float = 0.15
    least_s: float = 1.0
    each_share: float = 0.4
    short_share: float = 0.9
    first_share: float = 0.85
    memory_share: float = 0.6
    late_share: float = 0.3
    timed_from: int = 2000
    pace_s: float = 3e-5
    pace_spread: float = 2.5
    quick_below: float = 0.5
    placing_spread: float = 1.5
    late_s: float = 1.0
    placement_share: float = 0.25
    room_share: float = 0.5
    large_room_share: float = 0.2
    room_up_to: int = 200
    room_op_s: float = 0.1
    in_vain_share: float = 0.3


PARAMS = StartParams()

_SURE = 2
"""Heuristics that run whatever they take on small problems."""

_CUT_OFF = 2.0
"""So many times what is expected a heuristic may take before it is cut off, and what it has had when it begins again.
A guess."""


@dataclass
class _Run:
    """A heuristic, how far it has come, and what its next schedule may take.

    Attributes
    ----------
    spent_s, expected_s
        What its schedules took so far, and what the next may take.
    loads
        Whether it has to load a library first, which takes as long as many schedules of others.
    seen, found
        Whether it has made a schedule, and one that is a plan.
    behind
        Whether its last schedule was no better than what was known: a tighter surrogate seldom gives a better one.
    """

    number: int
    attempts: Iterator[Attempt]
    expected_s: float
    loads: bool = False
    spent_s: float = 0.0
    seen: bool = False
    found: bool = False
    behind: bool = False

    def turn(self, known: bool) -> tuple[bool, bool, float, int]:
        """Least comes first: who has promise, where a plan is known who has found none, who will have used least time.

        Where memory is short a first schedule seldom is a plan, and a second one often: to wait for all firsts would
        leave no time for it.
        """
        return self.behind, known and (self.found or self.loads), self.spent_s + self.expected_s, self.number


class StartSearch:
    """All heuristics on a problem, to be stopped and gone on with.

    Parameters
    ----------
    incumbent
        Of the problem.
    starts
        The heuristics, a quick one first that foretells the others.

    Attributes
    ----------
    surrogate
        The instance that led to the best schedule: where memory over time is short, it does well to search on.
    """

    def __init__(
        self, problem: Problem, instance: Instance, incumbent: Incumbent, starts: Sequence[StartMethod]
    ) -> None:
        self._problem, self._instance, self._incumbent, self._starts = problem, instance, incumbent, starts
        self.surrogate = instance
        self._waiting: list[_Run] = []
        self._in_vain: list[_Run] = []
        self._placement: list[int] | None = None
        self._rooms_made = 0
        # Nobody waits for a large graph's second heuristic, but no plan at all is worse than a late one.
        self._sure = _SURE if instance.op_count * instance.device_count <= PARAMS.timed_from else 1

    def run(self, hurry: bool = False) -> None:
        """As many as the time allows; where there is no plan yet, until there is one.

        Parameters
        ----------
        hurry
            Whether list schedules are known already: then the first heuristic gets no more time than all of them, and
            none any where it would be cut off. Where they are not and one might not end in time, quicker ones come
            first.
        """
        budget = self._incumbent.budget
        began, left_s, first_s = time.monotonic(), budget.left_s, budget.for_first.left_s
        share_s = max(PARAMS.share * left_s, min(PARAMS.least_s, PARAMS.short_share * left_s))
        foretold_s = PARAMS.pace_s * self._instance.op_count * self._instance.device_count
        late = hurry and self._incumbent.best is not None and foretold_s > share_s
        might_end = PARAMS.pace_spread * foretold_s * self._starts[0].cost <= budget.for_first.left_s
        asked = [] if hurry or might_end or self._sure > 1 else self._ask_quick(foretold_s)
        pace = foretold_s if late else float("inf")
        for number, (cost, _, _, loads_s) in enumerate(self._starts):
            if number in asked:
                continue
            run = _Run(number, self._attempts(number), cost * pace + loads_s, loads_s > 0)
            if late:
                self._waiting.append(run)
            elif number < self._sure:
                allowed_s = share_s if hurry else PARAMS.first_share * left_s
                allowed = budget if number or hurry else budget.for_first
                self._ask_within(run, allowed, began + allowed_s + allowed.deadline - budget.deadline)
                # The first may load libraries; a pace too slow leaves out what there is time for.
                pace = min(pace, run.expected_s / cost)
            else:
                self._waiting.append(run)
        in_vain_share = PARAMS.in_vain_share if self._has_room_search else PARAMS.memory_share
        if late:
            share_s /= PARAMS.pace_spread
        in_vain_s = max(in_vain_share * first_s, min(PARAMS.least_s, PARAMS.memory_share * first_s))
        memory_s = max(PARAMS.memory_share * left_s, share_s)
        each_s = share_s if hurry else max(PARAMS.each_share * left_s, share_s)
        self._go_on(began + share_s, began + each_s, began + memory_s, began + in_vain_s)
        if self._incumbent.best is None:
            within(self._incumbent.budget.stop.is_set, lambda: self._on_placement(self._incumbent.budget.deadline))
        if self._incumbent.best is None:
            share = PARAMS.room_share if self._has_room_search else PARAMS.large_room_share
            seconds = share * self._incumbent.budget.left_s
            if self._instance.working_count <= EXACT_UP_TO:
                seconds = min(seconds, PARAMS.room_op_s * self._instance.op_count)
            self._make_room(seconds)
        if self._incumbent.best is None:
            self._go_on(*[self._incumbent.budget.for_first.deadline] * 4)

    @property
    def _has_room_search(self) -> bool:
        """Whether a search for any plan gets anywhere: it makes thousands of schedules."""
        return self._instance.op_count <= PARAMS.room_up_to

    def _make_room(self, seconds: float) -> None:
        """A search for any plan, with one op after another."""
        from dlplacer.solvers.feasibility.room_search import search_room

        problem, instance, incumbent = self._problem, self._instance, self._incumbent
        seed, self._rooms_made = incumbent.budget.seed + self._rooms_made, self._rooms_made + 1
        search = partial(search_room, problem, instance, self._placement, seconds, seed)
        self._placement = None
        incumbent.offer(within(incumbent.budget.stop.is_set, search))

    def _ask_quick(self, foretold_s: float) -> list[int]:
        """One schedule of a heuristic quicker than a list schedule, and one that places first.

        Each gets what it is foretold to take, the second, of which less is known, somewhat more. Returns those that
        were asked, some in vain.
        """
        budget, asked = self._incumbent.budget.for_first, list[int]()
        costs = [start.cost for start in self._starts]
        quicker = [number for number, cost in enumerate(costs) if PARAMS.quick_below <= cost < 1.0]
        placing = [number for number, cost in enumerate(costs) if cost < PARAMS.quick_below]
        late_s = min((costs[number] for number in quicker), default=0.0) * foretold_s - budget.left_s
        if late_s > PARAMS.late_s:
            quicker = []
        elif late_s > 0:
            budget = replace(budget, deadline=budget.deadline + PARAMS.late_s)
        for numbers, spread in ((quicker, 1.0), (placing, PARAMS.placing_spread)):
            for number in numbers:
                expected_s = costs[number] * foretold_s
                run = _Run(number, self._attempts(number), expected_s)
                self._ask_within(run, budget, min(budget.deadline, time.monotonic() + spread * expected_s))
                asked.append(number)
                if run.found:
                    break
        return asked

    def go_on(self) -> None:
        """Those that there was no time for, and those that found no room, on a placement that has it.

        Where there is no plan yet, the search for any goes on as long as there is time.
        """
        if self._incumbent.best is None:
            self._make_room(self._incumbent.budget.left_s)
        until = time.monotonic() + PARAMS.late_share * self._incumbent.budget.left_s
        self._go_on(until, until, until, until)
        if self._in_vain and self._instance.memory_binds and not self._incumbent.closed:
            self._on_placement(until)

    def _go_on(self, until: float, each_until: float, memory_until: float, in_vain_until: float) -> None:
        """Let those run that end in time; without a plan whatever they take, up to a moment."""
        incumbent, late = self._incumbent, list[_Run]()
        while self._waiting and not incumbent.closed and not incumbent.budget.stop.is_set():
            run = min(self._waiting, key=lambda run: run.turn(incumbent.best is not None))
            self._waiting.remove(run)
            ends_at = until if run.behind else memory_until if run.seen or incumbent.refused else each_until
            now = time.monotonic()
            if incumbent.best is None:
                may = (run.number < self._sure and not run.seen) or now < in_vain_until
            else:
                may = now + run.expected_s < min(ends_at, incumbent.budget.deadline)
            if may:
                self._ask(run, max(ends_at, now + _CUT_OFF * run.expected_s))
            else:
                late.append(run)
        self._waiting += late

    def _ask_within(self, run: _Run, budget: Budget, until: float) -> None:
        """One schedule of a heuristic, in a budget of its own."""
        own, self._incumbent.budget = self._incumbent.budget, budget
        self._ask(run, until)
        self._incumbent.budget = own

    def _ask(self, run: _Run, until: float) -> None:
        """One schedule of a heuristic; it waits for its next turn unless that was its last.

        One that is cut off for lack of time waits too, and begins again.
        """
        began, incumbent = time.monotonic(), self._incumbent

        def is_over() -> bool:
            late = incumbent.best is not None and time.monotonic() > until
            return late or incumbent.budget.stop.is_set()

        made = within(is_over, lambda: list(islice(run.attempts, 1)))
        run.expected_s = time.monotonic() - began
        run.spent_s += run.expected_s
        run.seen |= made is not None
        if made is None:
            run.attempts = self._attempts(run.number)
            run.expected_s *= _CUT_OFF
        elif not made:
            if not run.found:
                self._in_vain.append(run)
            return
        for attempt in made or ():
            if attempt.schedule is not None:
                self._offer(run, attempt, attempt.schedule)
        self._waiting.append(run)

    def _offer(self, run: _Run, attempt: Attempt, found: Schedule) -> None:
        """Offer what a heuristic has found; a refused one tells the incumbent that memory is short."""
        incumbent = self._incumbent
        run.behind = incumbent.best is not None and found.makespan >= incumbent.best.makespan
        run.found |= attempt.admitted
        if incumbent.offer(found):
            self.surrogate = attempt.surrogate

    def _attempts(self, number: int) -> Iterator[Attempt]:
        return attempts(self._problem, self._instance, partial(self._starts[number].find, self._problem))

    def _on_placement(self, until: float) -> None:
        """Those that found no plan, on a placement that a search for room alone finds.

        Raises
        ------
        InfeasibleError
            If no placement exists.
        """
        incumbent, count = self._incumbent, self._problem.op_count
        without = [*self._in_vain, *(run for run in self._waiting if not run.found)]
        self._in_vain = []
        placement = require_placement(self._problem, PARAMS.placement_share * incumbent.budget.left_s)
        self._placement = placement
        if placement is None:
            return
        blocks: dict[int, tuple[int, ...]] = {
            number: (placement[ops[0]],) for number, ops in enumerate(self._instance.members) if ops[0] < count
        }
        placed = self._instance.limited(blocks)
        for run in without:
            if incumbent.best is None or time.monotonic() + run.expected_s < until:
                incumbent.offer(self._starts[run.number].find(self._problem, placed))


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
