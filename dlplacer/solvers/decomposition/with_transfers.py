"""The series of a chain with link contention: inside each, a link direction carries one transfer at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.decomposition.segments import Series
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import anneal_series, search_series
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_rules import heft, list_schedule
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import now


@dataclass(frozen=True)
class TransferSearchParams:
    """The effort for series with their traffic.

    Attributes
    ----------
    advance_share, bound_share
        Shares of the time that is left for proving series, and for the bounds of the whole.
    work, large_work, large_from, growth
        Deterministic seconds of CP-SAT per series in the first round, less in chains of so many ops; and the factor for
        every further one.
    far
        Share by which the schedule that the series make up may be above the best plan: what ops outside all segments
        make longer, other placements of the segments do not mend.
    patience
        Rounds in a row that may bring nothing.
    closing, again_s
        For a series that comes again and again: the share by which it may take longer to end where it began, and
        seconds of annealing.
    """

    advance_share: float = 0.5
    bound_share: float = 0.05
    work: float = 0.4
    large_work: float = 0.1
    large_from: int = 20_000
    growth: float = 3.0
    far: float = 0.25
    patience: int = 2
    closing: float = 0.005
    again_s: float = 0.5


PARAMS = TransferSearchParams()


def search_with_transfers(chain: SegmentChain, incumbent: Incumbent, bounds: Bounds, stop_at: float) -> Bounds:
    """Solve the series of a chain with their traffic, in rounds of growing work; the bounds that follow.

    Their best schedules make up schedules of the whole: the search ends when several rounds in a row have brought
    nothing. Where routes are many, series are bounded by what all of them hold, if they share any link; else the bounds
    are those without contention.

    Parameters
    ----------
    chain
        Of series without their traffic, searched before.
    """
    chain, budget, traffic = chain.with_traffic(), incumbent.budget, chain.instance.traffic
    bounding = traffic is not None and (traffic.routes.complete or traffic.routes.share_links)
    layers = Layers(chain)
    work, idle = PARAMS.large_work if chain.instance.op_count >= PARAMS.large_from else PARAMS.work, 0
    while idle < PARAMS.patience and budget.left_s and (asked := now()) < stop_at and not incumbent.closed:
        reached = incumbent.bound, incumbent.best
        # What a layer that comes 2,000 times was solved for is put together, too, when its share is over.
        chain.budget = chain.budget_of(budget.left_s if chain.repeats else min(stop_at - asked, budget.left_s))
        advance_until = asked + PARAMS.advance_share * (stop_at - asked)
        while chain.open and now() < advance_until and budget.left_s:
            # A series that takes longer with its traffic costs the whole as much, so they come before combinations.
            before = chain.open_ticks
            chain.advance(work, advance_until, partial(search_series, with_transfers=True))
            work *= PARAMS.growth
            if chain.repeats and chain.open_ticks == before:
                break
        if bounding:
            bounds = chain.raised(bounds, PARAMS.bound_share * budget.left_s)
            incumbent.raise_bound(bounds.makespan)
        least = float("inf")
        for schedule in layers.schedules() if chain.repeats else chain.candidates():
            incumbent.offer(schedule)
            least = min(least, schedule.makespan)
        if incumbent.best is not None and least > (1 + PARAMS.far) * incumbent.best.makespan:
            return bounds
        idle = idle + 1 if reached == (incumbent.bound, incumbent.best) else 0
    return bounds


class Layers:
    """A chain in which a series comes again and again, put together so that each begins where the last one ended.

    Equal series between equal surroundings are asked once: of 2,000 equal layers there are as many as devices on which
    one may begin. Each pass begins with another seed.
    """

    def __init__(self, chain: SegmentChain) -> None:
        self.chain, self.instance = chain, chain.instance
        self.passes = 0
        self.returning: dict[tuple[Instance, frozenset[tuple[int, int]]], Schedule] = {}

    def schedules(self) -> Iterator[Schedule]:
        """Schedules of the whole; none if some series has none, or time is up."""
        self.passes += 1
        assigned, parts = [-1] * len(self.instance.members), list[tuple[Schedule, range]]()
        answers: dict[tuple[Instance, frozenset[tuple[int, int]]], Schedule] = {}
        for series in self.chain.series:
            best = self.chain.incumbents[series.instance].best
            if best is None or not self.chain.budget.left_s:
                return
            block, decided = series.instance.block, dict[int, int]()
            ops = self._positions(series)
            for op, position in ops.items():
                here = assigned[self.instance.block[op]]
                if here in series.instance.allowed[position]:
                    decided.setdefault(block[position], here)
            question = series.instance, frozenset(decided.items())
            if question not in answers:
                again = self.chain.comes_again(series.instance)
                answers[question] = self._closed(series.instance, decided, best) if again else best
            found = answers[question]
            for op, position in ops.items():
                if assigned[self.instance.block[op]] < 0:
                    assigned[self.instance.block[op]] = found.device[position]
            parts.append((found, range(self.instance.device_count)))
        yield from self.chain.combined(parts)

    def _positions(self, series: Series) -> dict[int, int]:
        """Op of the whole → its position in a series."""
        return {op: place for part, first in self.chain.spans(series) for place, op in enumerate(part.ops, first)}

    def _closed(self, instance: Instance, decided: dict[int, int], best: Schedule) -> Schedule:
        """A schedule that begins and ends on the device that is decided, or on that of the best schedule.

        Unless it takes much longer than one that may end anywhere.
        """
        first, last = (instance.block[op] for op in (0, instance.op_count - 1))
        decided.setdefault(first, best.device[0])
        returns = {last: decided[first]} if decided[first] in instance.allowed[-1] else {}
        several = (self._improved(instance, kept, best) for kept in (returns | decided, decided))
        found = [schedule for schedule in several if schedule is not None]
        least = min((schedule.makespan for schedule in found), default=0)
        return next((schedule for schedule in found if schedule.makespan <= (1 + PARAMS.closing) * least), best)

    def _improved(self, instance: Instance, decided: dict[int, int], best: Schedule) -> Schedule | None:
        """The best schedule that keeps to what is decided: that of the last pass, or a better one from another seed."""
        kept = instance.limited({number: (device,) for number, device in decided.items()})
        key = instance, frozenset(decided.items())
        budget = replace(self.chain.budget_of(self.chain.budget.left_s), seed=self.chain.budget.seed + self.passes)
        incumbent = Incumbent(budget)
        incumbent.raise_bound(self.chain.incumbents[instance].bound)
        if all(best.device[instance.members[number][0]] == device for number, device in decided.items()):
            incumbent.offer(best)
        for found in (self.returning.get(key), construct(kept, list_schedule), construct(kept, heft)):
            incumbent.offer(found)
        anneal_series(kept, incumbent, PARAMS.again_s)
        if incumbent.best is not None:
            self.returning[key] = incumbent.best
        return incumbent.best
