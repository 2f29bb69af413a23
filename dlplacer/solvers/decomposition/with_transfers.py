"""The series of a chain with link contention: inside each, a link direction carries one transfer at a time."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.decomposition.low_traffic import Answers, low_traffic
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import search_series
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import now
from dlplacer.solvers.local_search.critical_swaps import swap_critical_of


@dataclass(frozen=True)
class TransferSearchParams:
    """The effort for series with their traffic; none of it was tuned.

    Attributes
    ----------
    advance_share
        Share of the time that is left for proving series; the rest is for combining their schedules.
    work, large_work, large_from, growth
        Deterministic seconds of CP-SAT per series in the first round, less in chains of so many ops, which take 5 to
        10 s to be put together where cores are slow; and the factor for every further one: more than without transfers,
        as the models have literals for every route and intervals for every link direction.
    slacks
        Shares by which a series may take longer than its best schedule in favour of less traffic: first none.
    low_traffic_work
        Deterministic seconds of CP-SAT for each communication-minimising subproblem.
    far, near
        Shares by which the best schedule that the series make up may be above the best plan, without low traffic and
        with it: what ops outside all segments make longer, other placements of the segments do not mend. Inception's
        were 3 % above and became 8 % better than the plan on four GPUs joined by NVLink; on PCIe they were 63 % above,
        and GPT-2's with little traffic 50 %, after 8 of 30 s.
    patience
        Rounds in a row that may bring nothing.
    bound_share
        Share of the time that is left for the bounds of the whole.
    swap_margin, swap_share
        Schedules at most so much above the best get better orders, for this share of the time in all. What the rounds
        made up for Inception's training step on four GPUs was 0.9 to 1.4 % above the bound; better orders led to 0.06 %
        from one and to 0.3 from another, whatever their moves were tried first. Here is most of what eight GPUs gain:
        a descent takes half a second to one and a half.
    """

    advance_share: float = 0.5
    work: float = 0.4
    large_work: float = 0.1
    large_from: int = 20_000
    growth: float = 3.0
    slacks: tuple[float, ...] = (0.0, 0.01, 0.03)
    low_traffic_work: float = 0.12
    far: float = 0.25
    near: float = 0.1
    patience: int = 2
    bound_share: float = 0.05
    swap_margin: float = 0.02
    swap_share: float = 0.2


PARAMS = TransferSearchParams()


class TransferSearch:
    """The search on a chain's series with their traffic, to be stopped and gone on with.

    Parameters
    ----------
    chain
        Of series without their traffic, searched before.
    incumbent
        Of the chain's instance.
    """

    def __init__(self, chain: SegmentChain, incumbent: Incumbent) -> None:
        self._chain, self._incumbent = chain.with_traffic(), incumbent
        self._known: dict[float, Answers] = {slack: {} for slack in PARAMS.slacks}
        self._passes = 0

    def run(self, bounds: Bounds, stop_at: float) -> Bounds:
        """Solve the series, in rounds of growing work; the bounds that follow.

        Their best schedules that send little make up schedules of the whole, others in every round: it ends when
        several rounds in a row have brought nothing. Where routes are many, series are bounded by what all of them
        hold, if they share any link; else the bounds are those without contention.
        """
        chain, incumbent = self._chain, self._incumbent
        budget, traffic = incumbent.budget, chain.instance.traffic
        bounding = traffic is not None and (traffic.routes.complete or traffic.routes.share_links)
        offers = self._offers(stop_at)
        is_large = chain.instance.op_count >= PARAMS.large_from
        work, idle = PARAMS.large_work if is_large else PARAMS.work, 0
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
            if not (chain.repeats or offers.offer(chain.candidates(), PARAMS.far)):
                return bounds
            if not all(self._combine(offers, slack) for slack in PARAMS.slacks):
                return bounds
            idle = idle + 1 if reached == (incumbent.bound, incumbent.best) else 0
        return bounds

    def _combine(self, offers: "_Offers", slack: float) -> bool:
        """Offer what series that send little make up; whether that is near the best."""
        seed = self._incumbent.budget.seed + self._passes
        self._passes += 1
        found = low_traffic(self._chain, slack, PARAMS.low_traffic_work, seed, self._known[slack])
        return offers.offer(found, PARAMS.near)

    def _offers(self, stop_at: float) -> "_Offers":
        # Schedules of many equal layers are long, and what orders would gain there segments have gained.
        swap_s = 0.0 if self._chain.repeats else PARAMS.swap_share * (stop_at - now())
        return _Offers(self._chain.instance, self._incumbent, swap_s)


class _Offers:
    """Offers schedules of a chain, those near the best with better orders of ops and transfers too.

    Parameters
    ----------
    swap_s
        Seconds for better orders, in all.
    """

    def __init__(self, instance: Instance, incumbent: Incumbent, swap_s: float) -> None:
        self._instance, self._incumbent, self._swap_s = instance, incumbent, swap_s

    def offer(self, schedules: Iterable[Schedule], margin: float) -> bool:
        """Offer schedules; whether one of them is at most this share above the best."""
        near = False
        for schedule in schedules:
            self._incumbent.offer(schedule)
            best = self._incumbent.best
            above = float("-inf") if best is None else schedule.makespan / best.makespan - 1
            near = near or above <= margin
            if above <= PARAMS.swap_margin:
                began = now()
                swap_critical_of(self._instance, schedule, self._incumbent, self._swap_s)
                self._swap_s -= now() - began
        return near
