"""Series decomposition: solve the sections between cut ops one by one, and combine their schedules.

The sum of the sections' bounds is a bound on the whole. If all devices are interchangeable, memory does not bind, and
the series share nothing but cut ops, their best schedules also combine, and the sum is the optimum.
Otherwise a combined schedule is only a candidate, and its true makespan counts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from random import Random

from ortools.sat.python import cp_model

from dlplacer.solvers.bounds import Bounds, lower_bounds
from dlplacer.solvers.decode.decode import compact
from dlplacer.solvers.decomposition.idle_ends import charge_idle_ends, ticks_with_idle_ends
from dlplacer.solvers.decomposition.sections import (
    GraphSection,
    Series,
    couple,
    find_sections,
    reached,
    relaxed,
    with_traffic,
)
from dlplacer.solvers.heuristics.list_rules import by_rank, construct, heft, list_schedule, upward_ranks
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.ilp.cp_sat_search import (
    SearchEnd,
    new_solver,
    no_schedule_error,
    read_schedules,
    reader,
    search,
    solve_in_thread,
)
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.instance import FAR, Instance, interchangeable
from dlplacer.solvers.instance.schedule import Budget, Incumbent, Schedule, SchedulesOnly
from dlplacer.solvers.instance.time_limit import now, side_by_side
from dlplacer.solvers.local_search.anneal import anneal_schedule
from dlplacer.solvers.local_search.compile_ahead import compiled_in_time

_FIND_SHARE, _BOUND_SHARE, _PART_BOUND_S = 0.25, 0.1, 0.5
"""Shares of the time left: for finding sections, and for bounds of the whole; seconds for a part's bounds."""

_SHARES, _WORK, _GROWTH = (0.5, 0.4, 0.2), (0.1, 0.4), 4.0
"""Shares of the time without transfers, with transfers, and to minimise communication; deterministic CP-SAT seconds per
series in the first round, without and with transfers; growth of these seconds per round."""

_SLACKS, _NEAR, _PATIENCE = (0.0, 0.01, 0.03), 0.1, 2
"""Shares by which a series may exceed its best schedule to send less; share by which combined schedules may exceed the
best plan; passes in a row without success that end the search."""

_RESTARTS, _LARGEST_SEARCH = 30, 250
"""Randomized restarts before CP-SAT, and ops above which a series is not searched: CP-SAT proves about 60 ops in
seconds."""

_SUFFIX_SIZES, _SUFFIX_SHARE, _SUFFIX_WORK = (15, 30, 60), 0.05, 1.0
"""Most working ops of each suffix to solve, and share of time and deterministic seconds per suffix. Larger suffixes
give higher bounds, but are solved less often."""

_OFTEN = 4
"""Occurrences per device above which a series counts as repeated."""


_LEAST_WORK, _MOST_S, _ANEW = 0.03, 5.0, 0.25
"""Deterministic CP-SAT seconds and time limit in seconds of a subproblem, and share of known answers to recompute."""

_CLOSING, _AGAIN_S, _ANNEAL_GAP = 0.005, 0.5, 0.01
"""For a repeated series: the share by which it may take longer to end on its first device, seconds of annealing, and
the gap above which annealing runs."""

_Question = tuple[Instance, frozenset[tuple[int, int]]]
"""The instance of a series, and the (block, device) pairs that are decided."""


@dataclass
class Known:
    """Bounds and best schedule of an instance. `exhausted`: its inexact model is solved, so the search is over."""

    bounds: Bounds
    incumbent: Incumbent
    exhausted: bool = False

    @property
    def width(self) -> int:
        """Ticks between bound and best schedule."""
        return 0 if self.incumbent.best is None else self.incumbent.best.makespan - self.incumbent.bound


class SectionChain:
    """The sections before one op, and results per instance; `alone` has a series for each section of joined series."""

    def __init__(
        self, instance: Instance, sections: Sequence[GraphSection], series: Sequence[Series], budget: Budget
    ) -> None:
        self.instance, self.sections, self.series, self.budget = instance, sections, series, budget
        self.alone, self.known = list[Series](), dict[Instance, Known]()

    @classmethod
    def of(cls, instance: Instance, sections: Sequence[GraphSection], budget: Budget) -> "SectionChain":
        """The chain of some sections, with bounds and list schedules of all its parts."""
        chain = cls(instance, sections, couple(instance, sections), budget)
        joined = {number for series in chain.series if len(series.sections) > 1 for number in series.sections}
        chain.alone = [Series((number,), sections[number].instance) for number in sorted(joined)]
        for section in sections:
            if section.instance not in chain.known:
                found = lower_bounds(section.instance, _PART_BOUND_S)
                ticks = max(found.makespan, ticks_with_idle_ends(section, found))
                chain.begin(section.instance, replace(found, makespan=ticks))
        for series in chain.series:
            if series.instance not in chain.known:
                chain.begin(series.instance, lower_bounds(series.instance, _PART_BOUND_S))
        return chain

    def with_traffic(self) -> "SectionChain":
        """The same chain with traffic, started from the results without it."""
        several = with_traffic(self.instance, self.sections, self.series)
        chain = SectionChain(self.instance, self.sections, several, self.budget)
        chain.known |= self.known
        for before, series in zip(self.series, several, strict=True):
            if series.instance not in chain.known:
                known = self.known[before.instance]
                begun = chain.begin(series.instance, replace(known.bounds, makespan=known.incumbent.bound))
                if known.incumbent.best is not None:
                    best = known.incumbent.best
                    begun.incumbent.offer(compact(series.instance, best.device, best.start))
        return chain

    def begin(self, instance: Instance, bounds: Bounds) -> Known:
        """Record the bounds of an instance, and its list schedules as far as time allows."""
        incumbent = Incumbent(self.budget_of(self.budget.left_s))
        for rule in (list_schedule, heft) if self.budget.left_s else ():
            incumbent.offer(construct(instance, rule))
        incumbent.raise_bound(bounds.makespan)
        self.known[instance] = Known(bounds, incumbent)
        return self.known[instance]

    @cached_property
    def repeated(self) -> set[Instance]:
        """Instances shared by so many series, such as those of a layer, that one good schedule decides the whole."""
        count = Counter(series.instance for series in self.series)
        return {instance for instance, times in count.items() if times > _OFTEN * instance.device_count}

    @property
    def open(self) -> list[Series]:
        """The distinct unproven series of moderate size, the widest gap first.

        Sections of joined series come first: their bounds help to prove the joined series.
        """
        found = list[Series]()
        for several in (self.alone, self.series):
            distinct = {one.instance: one for one in several if one.instance.op_count <= _LARGEST_SEARCH}
            left = [(self.known[part], one) for part, one in distinct.items()]
            # Series without a list schedule, such as those across unjoined devices, are not searched.
            left = [
                each for each in left if each[0].incumbent.best and not (each[0].exhausted or each[0].incumbent.closed)
            ]
            found += [one for _, one in sorted(left, key=lambda entry: -entry[0].width)]
        return found

    def advance(self, work: float, stop_at: float) -> None:
        """Spend `work` deterministic seconds on every open series, one per worker, at most until `stop_at`."""

        def spend(series: Series, workers: int) -> None:
            left = min(stop_at - now(), self.budget.left_s)
            if left > 0:
                self.known[series.instance].incumbent.budget = replace(self.budget_of(left), workers=workers)
                search_series(self, series, work)

        side_by_side([partial(spend, series) for series in self.open], self.budget.workers)

    def raised(self, bounds: Bounds, seconds: float) -> Bounds:
        """Bounds of the whole, with the heads and tails of cut ops raised by the sections before and after them.

        Proof: a section's ops run between the starts of its cut ops. So the time before a cut op is at least the sum of
        the bounds of series that end before it and, for other series, of sections before it. The same holds after it.
        """
        head, tail = list(bounds.head), list(bounds.tail)
        end = self.sections[-1].ops[-1]
        numbers = range(len(self.sections))
        before, after = self._least_sums(numbers), self._least_sums(numbers[::-1])[::-1]
        for count in range(1, len(self.sections) + 1):
            cut = self.sections[count - 1].ops[-1]
            head[cut] = max(head[cut], before[count])
            left = after[count] + self.instance.shortest[end] + tail[end] - self.instance.longest[cut]
            tail[cut] = max(tail[cut], left)
        return lower_bounds(self.instance, seconds, head, tail)

    def candidates(self) -> Iterator[Schedule]:
        """Schedules of the whole from the best schedules of the series, with devices swapped so that cut ops agree."""
        found = {series.sections: self.known[series.instance].incumbent.best for series in self.series}
        best = {sections: schedule for sections, schedule in found.items() if schedule is not None}
        if len(best) == len(found):
            yield from self.combined(best, self._interchangeable)

    def combined(
        self, schedules: Mapping[tuple[int, ...], Schedule], swappable: Sequence[Sequence[int]] = ()
    ) -> Iterator[Schedule]:
        """Schedules of the whole from one schedule per series, with swappable devices swapped so that cut ops agree.

        First, ops outside the sections fill the gaps (HEFT), as late as their successors allow. Then list scheduling
        decides all times anew, with these ops last, or with all ops by upward rank.
        """
        instance, offset = self.instance, 0
        assigned = [-1] * len(instance.members)
        place, names = dict[int, float](), dict[tuple[int, ...], list[int]]()
        for number, section in enumerate(self.sections):
            series, first = self._position[number]
            schedule = schedules[series.sections]
            if series.sections not in names:
                name = names[series.sections] = list(range(instance.device_count))
                here, there = schedule.device[first], assigned[instance.block[section.ops[0]]]
                if any(here in members and there in members for members in swappable):
                    name[here], name[there] = there, here
            name = names[series.sections]
            began = 0 if section.begins else schedule.start[first]
            for position, op in enumerate(section.ops, first):
                if assigned[instance.block[op]] < 0:
                    assigned[instance.block[op]] = name[schedule.device[position]]
                place.setdefault(op, offset + schedule.start[position] - began)
            offset += schedule.start[first + len(section.ops) - 1] - began
        ranks = upward_ranks(instance)
        late = [-place[op] if op in place else rank - offset - max(ranks) for op, rank in enumerate(ranks)]
        for op in reversed(instance.order):
            late[op] = max((late[op], *(late[target] for target, _ in instance.successors[op])))
        # With repeated series, more passes gain more than more rules.
        rules = ((heft, late), (list_schedule, late), (list_schedule, ranks))
        for rule, priority in rules[: 1 if self.repeated and instance.traffic is not None else None]:
            found = rule(instance, by_rank(instance, priority), assigned)
            if found is not None:
                yield found
            if not self.budget.left_s:
                return

    def spans(self, series: Series) -> list[tuple[GraphSection, int]]:
        """The sections of a series, and the start of each in its instance."""
        chosen = [self.sections[number] for number in series.sections]
        return list(zip(chosen, accumulate((len(section.ops) for section in chosen), initial=0), strict=False))

    def budget_of(self, seconds: float) -> Budget:
        """A separate budget for one series."""
        return Budget(now() + seconds, seed=self.budget.seed, workers=self.budget.workers, stop=self.budget.stop)

    @cached_property
    def _interchangeable(self) -> list[tuple[int, ...]]:
        return interchangeable(self.instance)

    @cached_property
    def _position(self) -> dict[int, tuple[Series, int]]:
        """Number of a section → its series, and the section's start in the series' instance."""
        return {
            number: (series, first)
            for series in self.series
            for number, (_, first) in zip(series.sections, self.spans(series), strict=True)
        }

    def _least_sums(self, numbers: Sequence[int]) -> list[int]:
        """[count] → least sum of the makespans of the first `count` sections."""
        sums, total = [0], 0
        own = dict.fromkeys((series.sections for series in self.series), 0)
        missing = {series.sections: len(series.sections) for series in self.series}
        for number in numbers:
            series, _ = self._position[number]
            ticks = self.known[self.sections[number].instance].incumbent.bound
            own[series.sections] += ticks
            missing[series.sections] -= 1
            total += ticks
            if not missing[series.sections]:
                # The series is complete, so its own bound counts if it is larger.
                total += max(0, self.known[series.instance].incumbent.bound - own[series.sections])
            sums.append(total)
        return sums


def search_series(chain: SectionChain, series: Series, work: float) -> None:
    """Improve and prove the best schedule of a series, or of a suffix, with `work` deterministic seconds of CP-SAT."""
    instance, known = series.instance, chain.known[series.instance]
    incumbent, traffic = known.incumbent, series.instance.traffic
    improve(instance, incumbent, incumbent.budget.left_s, _RESTARTS)
    best = incumbent.best
    if best is None or incumbent.closed or not incumbent.budget.left_s:
        return
    model, variables = build_model(instance, known.bounds, best.makespan, best)
    for section, offset in chain.spans(series):
        alone = chain.known[section.instance]
        charge_idle_ends(model, instance, variables, section, alone.bounds, offset)
        if traffic is None:
            # CP-SAT does not add up the sections' bounds itself, even proven ones: each needs a row.
            last = variables.start[offset + len(section.ops) - 1]
            model.add(last - (0 if section.begins else variables.start[offset]) >= alone.incumbent.bound)
    exact = traffic is None or traffic.routes.complete
    heard = incumbent if exact else SchedulesOnly(incumbent)
    end = search(model, reader(variables, instance), heard, incumbent.budget.left_s, work)
    known.exhausted = not exact and (heard.closed or end is not SearchEnd.UNDECIDED)
    if end is SearchEnd.INFEASIBLE and exact:
        raise no_schedule_error(best)


def raise_suffix_bounds(
    chain: SectionChain, bounds: Bounds, incumbent: Incumbent, work: float = _SUFFIX_WORK
) -> Bounds:
    """Bounds raised by the suffixes after the last cut ops of a chain."""
    budget, tail = incumbent.budget, list(bounds.tail)
    for cut, part in suffixes(chain.instance, chain.sections, _SUFFIX_SIZES):
        stop_at = now() + _SUFFIX_SHARE * budget.left_s
        known = chain.begin(part, lower_bounds(part, _BOUND_SHARE * (stop_at - now())))
        known.incumbent.budget = chain.budget_of(stop_at - now())
        search_series(chain, Series((), part), work)
        tail[cut] = max(tail[cut], known.incumbent.bound)
    if tail != list(bounds.tail):
        bounds = lower_bounds(chain.instance, _BOUND_SHARE * budget.left_s, bounds.head, tail)
    incumbent.raise_bound(bounds.makespan)
    return bounds


def suffixes(
    instance: Instance, sections: Sequence[GraphSection], sizes: tuple[int, ...]
) -> Iterator[tuple[int, Instance]]:
    """For each size, the earliest cut op with at most that many working ops after it, and the instance of these ops.

    The instance begins with the cut op, which takes no time there, and has unlimited memory. Its least makespan bounds
    the cut op's tail. Suffixes inside sections are omitted, because the sections' own bounds cover them.
    """
    inside = {op for section in sections for op in section.ops}
    cuts = [section.ops[0] for section in sections if not section.begins]
    cuts += [section.ops[-1] for section in sections[-1:]]
    done: set[int] = set()
    for size in sizes:
        chosen = list[int]()
        for cut in reversed(cuts):
            after = reached(instance.successors, instance.order, cut)
            if sum(instance.longest[op] > 0 for op in after[1:]) > size:
                break
            chosen = after
        if chosen and chosen[0] not in done and not inside.issuperset(chosen[1:]):
            done.add(chosen[0])
            yield chosen[0], relaxed(instance, chosen, 0)


class LowTraffic:
    """Schedules of the whole, from series schedules that send least: *communication-minimising subproblems*.

    Many placements give a series its best time but differ in transfers, which delay other sections on contended links.
    A repeated series returns to the device where it begins, if this costs little. Equal subproblems are solved once.
    """

    def __init__(self, chain: SectionChain) -> None:
        self.chain, self.passes, self.random = chain, 0, Random(chain.budget.seed)
        self.known: dict[_Question, Schedule] = {}

    def schedules(self, slack: float) -> Iterator[Schedule]:
        """Schedules in which a series may exceed its best time by the share `slack`; each pass has a new seed."""
        self.passes += 1
        chain, block = self.chain, self.chain.instance.block
        assigned = [-1] * len(chain.instance.members)
        found, answers = dict[tuple[int, ...], Schedule](), dict[_Question, Schedule]()
        for series in chain.series:
            best = chain.known[series.instance].incumbent.best
            if best is None or not chain.budget.left_s:
                return
            ops = {op: at for part, first in chain.spans(series) for at, op in enumerate(part.ops, first)}
            decided: dict[int, int] = {}
            for op, position in ops.items():
                if assigned[block[op]] in series.instance.allowed[position]:
                    decided.setdefault(series.instance.block[position], assigned[block[op]])
            question = series.instance, frozenset(decided.items())
            if question not in answers:
                answers[question] = self._answer(question, decided, best, int((1 + slack) * best.makespan))
            for op, position in ops.items():
                if assigned[block[op]] < 0:
                    assigned[block[op]] = answers[question].device[position]
            found[series.sections] = answers[question]
        yield from chain.combined(found)

    def _answer(self, question: _Question, decided: Mapping[int, int], best: Schedule, upper: int) -> Schedule:
        if question[0] in self.chain.repeated:
            return self._closed(question[0], decided, best)
        known = self.known.get(question)
        if known is None or known.makespan > upper or self.random.random() < _ANEW:
            known = self.known[question] = self._solve(question[0], decided, upper) or best
        return known

    def _solve(self, instance: Instance, decided: Mapping[int, int], upper: int) -> Schedule | None:
        """The schedule of at most `upper` ticks that sends least of those found; None if none is found."""
        model, variables = build_model(instance, self.chain.known[instance].bounds, upper)
        for number, device in decided.items():
            model.add(variables.place[number][device] == 1)
        sent = [(one.used, sum(segment.ticks for segment in one.route)) for one in variables.optional_transfers]
        model.minimize(cp_model.LinearExpr.weighted_sum([used for used, _ in sent], [ticks for _, ticks in sent]))
        budget = self.chain.budget
        seconds = min(_MOST_S, budget.left_s)
        solver = new_solver(budget.workers, budget.seed + self.passes, seconds, _LEAST_WORK)
        if solve_in_thread(solver, model, seconds, budget.stop.is_set) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return read_schedules(variables, instance, solver.boolean_value, solver.value)[-1]
        return None

    def _closed(self, instance: Instance, decided: Mapping[int, int], best: Schedule) -> Schedule:
        """A schedule that ends on the device where it begins, or one without this rule if that is much shorter."""
        first, last = (instance.block[op] for op in (0, instance.op_count - 1))
        begun = {first: best.device[0], **decided}
        returns = {last: begun[first]} if begun[first] in instance.allowed[-1] else {}
        several = (self._improved(instance, kept, best) for kept in (returns | begun, begun))
        found = [schedule for schedule in several if schedule is not None]
        least = min((schedule.makespan for schedule in found), default=0)
        return next((schedule for schedule in found if schedule.makespan <= (1 + _CLOSING) * least), best)

    def _improved(self, instance: Instance, decided: Mapping[int, int], best: Schedule) -> Schedule | None:
        """The best schedule found that keeps the decided devices; each pass has another seed."""
        kept = instance.limited({number: (device,) for number, device in decided.items()})
        budget = replace(self.chain.budget_of(self.chain.budget.left_s), seed=self.chain.budget.seed + self.passes)
        incumbent = Incumbent(budget)
        incumbent.raise_bound(self.chain.known[instance].incumbent.bound)
        if all(best.device[instance.members[number][0]] == device for number, device in decided.items()):
            incumbent.offer(best)
        for start in (construct(kept, list_schedule), construct(kept, heft)):
            incumbent.offer(start)
        found = incumbent.best
        worth = found is not None and found.makespan - incumbent.bound > _ANNEAL_GAP * found.makespan
        if worth and compiled_in_time(budget.left_s, lambda: not budget.left_s):
            anneal_schedule(kept, incumbent, _AGAIN_S)
        return incumbent.best


def solve_sections(instance: Instance, bounds: Bounds, incumbent: Incumbent) -> Bounds:
    """Solve the sections before the op that ends last, first without and then with transfers; return the new bounds."""
    working = [op for op in range(instance.op_count) if op not in instance.sources]
    last = max(working, key=lambda op: bounds.head[op] + instance.shortest[op], default=0)
    sections = find_sections(instance, last, _FIND_SHARE * incumbent.budget.left_s) if working else []
    if len(sections) < 2:
        return bounds
    chain = SectionChain.of(instance, sections, incumbent.budget)
    bounds = _rounds(chain, bounds, incumbent, _WORK[0], _SHARES[0])
    if not incumbent.closed:
        bounds = raise_suffix_bounds(chain, bounds, incumbent)
    if instance.traffic is not None and incumbent.budget.left_s and not incumbent.closed:
        chain = chain.with_traffic()
        bounds = _rounds(chain, bounds, incumbent, _WORK[1], _SHARES[1])
        _send_less(LowTraffic(chain), incumbent)
    return bounds


def _send_less(search: LowTraffic, incumbent: Incumbent) -> None:
    """Offer schedules whose series send least, until several successive passes gain nothing or stay far from the best.

    Passes over repeated series differ by chance, and gain most for the whole.
    """
    repeats = bool(search.chain.repeated) and not search.chain.instance.memory_binds
    idle, stop_at = 0, now() + (1.0 if repeats else _SHARES[2]) * incumbent.budget.left_s
    while idle < _PATIENCE and not incumbent.closed and now() < stop_at:
        before = incumbent.best
        for slack in _SLACKS:
            if now() > stop_at:
                return
            least = FAR
            # Offer each at once: large ones take seconds, during which time may run out.
            for schedule in search.schedules(slack):
                incumbent.offer(schedule)
                least = min(least, schedule.makespan)
            if incumbent.best is None or (least > (1 + _NEAR) * incumbent.best.makespan and not repeats):
                return
        idle = idle + 1 if incumbent.best is before else 0


def _rounds(chain: SectionChain, bounds: Bounds, incumbent: Incumbent, work: float, share: float) -> Bounds:
    """Advance the open series in rounds of growing work, for a share of the time.

    With transfers and repeated series, bounds on the whole come last, because they take as long as a round, and
    `LowTraffic` finds the schedules.
    """
    budget, hurry = incumbent.budget, bool(chain.repeated) and chain.instance.traffic is not None
    alone = all(series.instance.traffic is None for series in chain.series)
    stop_at, width = now() + share * budget.left_s, -1
    while True:
        before, width = width, sum(chain.known[series.instance].width for series in chain.open)
        ends = not chain.open or now() > stop_at or not budget.left_s
        ends = ends or (hurry and before >= 0 and (alone or width == before))
        if ends or not hurry:
            bounds = chain.raised(bounds, _BOUND_SHARE * budget.left_s)
            incumbent.raise_bound(bounds.makespan)
        for schedule in chain.candidates() if not hurry else ():
            incumbent.offer(schedule)
        if incumbent.closed or ends:
            return bounds
        chain.advance(work, stop_at)
        work *= _GROWTH
