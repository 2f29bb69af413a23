"""Series decomposition: the segments between cut ops solved one by one, and put together again.

The sum of the segments' bounds bounds the whole. Where all devices can be swapped, memory does not bind and nothing
but the chain of cut ops joins the series of segments, their best schedules also fit together, and the sum is the
optimum. In all other cases what is put together is only a candidate, whose true makespan counts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate

from dlplacer.solvers.bounds import Bounds, lower_bounds
from dlplacer.solvers.decode.decode import compact
from dlplacer.solvers.decomposition.idle_ends import ticks_with_idle_ends
from dlplacer.solvers.decomposition.segments import GraphSegment, Series, couple, with_traffic
from dlplacer.solvers.heuristics.list_rules import by_rank, construct, heft, list_schedule, upward_ranks
from dlplacer.solvers.instance.instance import Instance, interchangeable
from dlplacer.solvers.instance.schedule import Budget, Incumbent, Schedule
from dlplacer.solvers.instance.time_limit import now, side_by_side

_BOUND_S = 0.5
"""Seconds for the bounds of a segment, at most."""

_LARGEST_SEARCH = 250
"""Ops above which a series is not searched: CP-SAT proves 62-op series in seconds, not 122 ops in a minute."""

_OFTEN = 4
"""Times per device from which a series comes again and again."""


class SegmentChain:
    """The segments of what leads to one op, and how far each series of them is solved; equal ones are solved once.

    Attributes
    ----------
    alone
        The segments of joined series, each as a series of its own.
    bounds
        Bounds of the segments' and series' instances.
    incumbents
        What is known of the series' instances.
    exhausted
        Instances of series whose model is solved, although it is not exact: another search would find the same.
    """

    def __init__(
        self, instance: Instance, segments: list[GraphSegment], series: list[Series], bounds: dict[Instance, Bounds]
    ) -> None:
        self.instance, self.segments, self.series, self.bounds = instance, segments, series, bounds
        self.alone: list[Series] = []
        self.incumbents: dict[Instance, Incumbent] = {}
        self.exhausted: set[Instance] = set()
        self.budget = Budget(0.0)

    @classmethod
    def of(cls, instance: Instance, segments: list[GraphSegment], budget: Budget) -> "SegmentChain":
        """The chain of some segments, with bounds of all its parts and list schedules of all its series."""
        chain = cls(instance, segments, couple(instance, segments), {})
        chain.budget = budget
        joined = {number for series in chain.series if len(series.segments) > 1 for number in series.segments}
        chain.alone = [Series((number,), segments[number].instance) for number in sorted(joined)]
        for segment in segments:
            if segment.instance not in chain.bounds:
                found = lower_bounds(segment.instance, _BOUND_S)
                ticks = max(found.makespan, ticks_with_idle_ends(segment, found))
                chain.bounds[segment.instance] = replace(found, makespan=ticks)
        for part in (entry.instance for entry in chain.series):
            if part not in chain.bounds:
                chain.bounds[part] = lower_bounds(part, _BOUND_S)
        for series in (*chain.alone, *chain.series):
            if series.instance not in chain.incumbents:
                chain.incumbents[series.instance] = chain.begin(series.instance)
        return chain

    def with_traffic(self) -> "SegmentChain":
        """The same chain with series that have traffic, and begin with what is known of them without."""
        series = with_traffic(self.instance, self.segments, self.series)
        chain = SegmentChain(self.instance, self.segments, series, dict(self.bounds))
        chain.budget = self.budget
        for before, part in zip(self.series, (entry.instance for entry in series), strict=True):
            if part in chain.incumbents:
                continue
            known = self.incumbents[before.instance]
            chain.bounds[part] = replace(self.bounds[before.instance], makespan=known.bound)
            begun = chain.begin(part) if self.budget.left_s else Incumbent(self.budget_of(0.0))
            chain.incumbents[part] = begun
            if known.best is not None:
                begun.offer(compact(part, known.best.device, known.best.start))
        return chain

    @property
    def open(self) -> list[Series]:
        """The series whose best schedules are not proven yet, each once, the widest open first.

        Before them come the segments of joined ones: what each takes alone helps to prove what they take together.
        Series of very many ops are not worth a search.
        """
        return [*self._unproven(self.alone), *self._unproven(self.series)]

    def comes_again(self, instance: Instance) -> bool:
        """True if a series comes so often, as that of a layer does, that one good schedule of it decides the whole."""
        return self._count[instance] > _OFTEN * instance.device_count

    @cached_property
    def repeats(self) -> bool:
        """True if some series comes again and again."""
        return any(map(self.comes_again, self._count))

    @property
    def open_ticks(self) -> int:
        """By how much the open series may be shorter than their best schedules, in all."""
        return sum(self._width(series) for series in self.open)

    def advance(self, work: float, stop_at: float, search: Callable[["SegmentChain", Series, float], None]) -> None:
        """Spend some work on every open series, one per worker at a time, until a moment of the clock (`now`)."""

        def spend(series: Series, workers: int) -> None:
            left = min(stop_at - now(), self.budget.left_s)
            if left > 0:
                self.incumbents[series.instance].budget = replace(self.budget_of(left), workers=workers)
                search(self, series, work)

        side_by_side([partial(spend, series) for series in self.open], self.budget.workers)

    def raised(self, bounds: Bounds, seconds: float) -> Bounds:
        """Bounds of the whole, with the heads and tails of cut ops raised by the segments before and after them.

        Proof: a segment's ops run between the starts of its cut ops. So up to a cut op pass at least the bounds of all
        series that lie before it, and the bounds of the segments before it that belong to other series; and the same
        after it.
        """
        head, tail = list(bounds.head), list(bounds.tail)
        end = self.segments[-1].ops[-1]
        numbers = range(len(self.segments))
        before, after = self._least_sums(numbers), self._least_sums(numbers[::-1])[::-1]
        for count in range(1, len(self.segments) + 1):
            cut = self.segments[count - 1].ops[-1]
            head[cut] = max(head[cut], before[count])
            tail[cut] = max(
                tail[cut], after[count] + self.instance.shortest[end] + tail[end] - self.instance.longest[cut]
            )
        return lower_bounds(self.instance, seconds, head, tail)

    def candidates(self) -> Iterator[Schedule]:
        """Schedules of the whole: the segments' best in a row, devices swapped so that cut ops agree.

        Ops outside the segments go into the gaps that are left, as late as what waits for them allows; or the list rule
        decides all times anew, with these ops last or by rank.
        """
        parts: dict[int, tuple[Schedule, list[int]]] = {}
        assigned = [-1] * len(self.instance.members)
        for number, segment in enumerate(self.segments):
            series, first = self._position[number]
            schedule = self.incumbents[series.instance].best
            if schedule is None:
                return
            if series.segments[0] not in parts:
                there = assigned[self.instance.block[segment.ops[0]]]
                parts[series.segments[0]] = schedule, self._swap(schedule.device[first], there)
            name = parts[series.segments[0]][1]
            for position, op in enumerate(segment.ops, first):
                if assigned[self.instance.block[op]] < 0:
                    assigned[self.instance.block[op]] = name[schedule.device[position]]
        yield from self.combined([parts[series.segments[0]] for series in self.series])

    def combined(self, parts: Sequence[tuple[Schedule, Sequence[int]]]) -> Iterator[Schedule]:
        """Schedules of the whole from one for every series and new names for its devices."""
        instance = self.instance
        assigned = [-1] * len(instance.members)
        place: dict[int, float] = {}
        offset = 0
        part_of = {series.segments: part for series, part in zip(self.series, parts, strict=True)}
        for number, segment in enumerate(self.segments):
            series, first = self._position[number]
            schedule, name = part_of[series.segments]
            span = range(first, first + len(segment.ops))
            began = 0 if segment.begins else schedule.start[first]
            for op, position in zip(segment.ops, span, strict=True):
                if assigned[instance.block[op]] < 0:
                    assigned[instance.block[op]] = name[schedule.device[position]]
                place.setdefault(op, offset + schedule.start[position] - began)
            offset += schedule.start[span[-1]] - began
        ranks = upward_ranks(instance)
        late = [-place[op] if op in place else rank - offset - max(ranks) for op, rank in enumerate(ranks)]
        for op in reversed(instance.order):
            late[op] = max((late[op], *(late[target] for target, _ in instance.successors[op])))
        for rule, priority in ((heft, late), (list_schedule, late), (list_schedule, ranks)):
            found = rule(instance, by_rank(instance, priority), assigned)
            if found is not None:
                yield found
            if not self.budget.left_s:
                return

    def spans(self, series: Series) -> list[tuple[GraphSegment, int]]:
        """The segments of a series, and where each begins in its instance."""
        chosen = [self.segments[number] for number in series.segments]
        return list(zip(chosen, accumulate((len(segment.ops) for segment in chosen), initial=0), strict=False))

    def least_ticks(self, segment: GraphSegment) -> int:
        """The lower bound on the time from the start of a segment's first cut op to the start of its last, at least."""
        known = self.incumbents.get(segment.instance)
        return max(self.bounds[segment.instance].makespan, 0 if known is None else known.bound)

    @cached_property
    def _count(self) -> Counter[Instance]:
        return Counter(series.instance for series in self.series)

    @cached_property
    def _interchangeable(self) -> list[tuple[int, ...]]:
        return interchangeable(self.instance)

    @cached_property
    def _position(self) -> dict[int, tuple[Series, int]]:
        """Number of a segment → its series, and where it begins in the series' instance."""
        return {
            number: (series, first)
            for series in self.series
            for number, (_, first) in zip(series.segments, self.spans(series), strict=True)
        }

    def _least_sums(self, numbers: Sequence[int]) -> list[int]:
        """[count] → least sum of the makespans of the first of some segments, so many of them."""
        sums, total = [0], 0
        own = dict.fromkeys((series.segments for series in self.series), 0)
        missing = {series.segments: len(series.segments) for series in self.series}
        for number in numbers:
            series, _ = self._position[number]
            ticks = self.least_ticks(self.segments[number])
            own[series.segments] += ticks
            missing[series.segments] -= 1
            total += ticks
            if not missing[series.segments]:
                # All segments of the series are among them, so what they take together counts where it is more.
                total += max(0, self.incumbents[series.instance].bound - own[series.segments])
            sums.append(total)
        return sums

    def _swap(self, here: int, there: int) -> list[int]:
        """New names of devices that put `there` in the place of `here`, if the two can be swapped."""
        name = list(range(self.instance.device_count))
        if any(here in members and there in members for members in self._interchangeable):
            name[here], name[there] = there, here
        return name

    def begin(self, instance: Instance) -> Incumbent:
        """The schedules of list rules and the bounds of a series' instance.

        One that comes again and again is begun on every device: local search does not move its first op, which feeds
        all others, away from where a rule has put it.
        """
        incumbent = Incumbent(self.budget_of(self.budget.left_s))
        swapped = {device for members in self._interchangeable for device in members[1:]}
        firsts = set(instance.allowed[0]) - swapped if self.comes_again(instance) else {-1}
        for rule in (list_schedule, heft):
            for first in firsts:
                fixed = [first if block == instance.block[0] else -1 for block in range(len(instance.members))]
                incumbent.offer(construct(instance, rule, fixed))
        incumbent.raise_bound(self.bounds[instance].makespan)
        return incumbent

    def budget_of(self, seconds: float) -> Budget:
        """A budget of its own for one series."""
        return Budget(now() + seconds, seed=self.budget.seed, workers=self.budget.workers, stop=self.budget.stop)

    def _unproven(self, several: Sequence[Series]) -> list[Series]:
        distinct = {series.instance: series for series in several if series.instance.op_count <= _LARGEST_SEARCH}
        unproven = [
            series
            for part, series in distinct.items()
            if part not in self.exhausted and not self.incumbents[part].closed
        ]
        return sorted(unproven, key=lambda series: -self._width(series))

    def _width(self, series: Series) -> int:
        incumbent = self.incumbents[series.instance]
        return 0 if incumbent.best is None else incumbent.best.makespan - incumbent.bound
