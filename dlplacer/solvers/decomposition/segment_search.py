"""The segment phase: series solved in rounds of growing work, then suffixes, then series with their traffic."""

import time
from dataclasses import dataclass

from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.decomposition.segments import find_segments
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import search_series
from dlplacer.solvers.decomposition.suffix_bounds import raise_suffix_bounds
from dlplacer.solvers.decomposition.with_transfers import solve_with_transfers
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance


@dataclass(frozen=True)
class SegmentParams:
    """What is spent on segments: they gave 45 to 100 % of the bound wherever a graph falls apart.

    Attributes
    ----------
    largest_whole
        Up to so many ops a graph that does not fall apart is one segment, searched as a whole; larger ones are left to
        the windows. The size of the largest series that is searched.
    share
        Share of the time that is left, without transfers. A guess.
    work, growth
        Deterministic seconds of CP-SAT per series in the first round, and the factor for every further one. Of the 9
        segments that bounds leave open in Inception's forward pass 7 are proven within 0.03; with a factor of 4 what
        was spent in vain before the last round is a third of it.
    transfer_share
        Share of the time that is then left for series with their traffic; the contention-aware search brought up to
        42 % of a plan's improvement.
    bound_share
        Share of the time that is left for the bounds of the whole after each round.
    """

    largest_whole: int = 250
    share: float = 0.5
    work: float = 0.1
    growth: float = 4.0
    transfer_share: float = 0.6
    bound_share: float = 0.1


def solve_segments(
    instance: Instance, bounds: Bounds, incumbent: Incumbent, params: SegmentParams = SegmentParams()
) -> tuple[Bounds, SegmentChain | None]:
    """Solve the segments between cut ops, in rounds of growing work; the bounds of the whole that follow.

    With the bounds comes the chain of the segments, None if the graph does not fall apart.
    """
    budget = incumbent.budget
    stop_at = time.monotonic() + params.share * budget.left_s
    followers = [op for op in range(instance.op_count) if op not in instance.sources]
    if not followers:
        return bounds, None
    last = max(followers, key=lambda op: bounds.head[op] + instance.shortest[op])
    segments = find_segments(instance, last, params.bound_share * budget.left_s)
    if instance.op_count > params.largest_whole and len(segments) < 2:
        return bounds, None
    chain = SegmentChain.of(instance, segments, budget)
    work = params.work
    while len(chain.segments) > 1 and budget.left_s:
        bounds = chain.raised(bounds, params.bound_share * budget.left_s)
        incumbent.raise_bound(bounds.makespan)
        for schedule in chain.candidates():
            incumbent.offer(schedule)
        if incumbent.closed or not chain.open or time.monotonic() > stop_at:
            break
        chain.advance(work, stop_at, search_series)
        work *= params.growth
    if len(chain.segments) > 1 and not incumbent.closed:
        bounds = raise_suffix_bounds(chain, bounds, incumbent)
    if instance.traffic is not None and len(chain.segments) > 1 and budget.left_s:
        stop_at = time.monotonic() + params.transfer_share * budget.left_s
        bounds = solve_with_transfers(chain, bounds, incumbent, stop_at)
    return bounds, chain if len(chain.series) > 1 else None
