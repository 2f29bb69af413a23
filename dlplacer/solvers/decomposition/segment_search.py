"""The segment phase: series solved in rounds of growing work, then suffixes, then series with their traffic."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.decomposition.segments import GraphSegment, find_segments
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import raise_suffix_bounds, search_series
from dlplacer.solvers.decomposition.with_transfers import search_with_transfers
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import now


@dataclass(frozen=True)
class SegmentParams:
    """The effort for segments; shares are of the time that is left.

    Attributes
    ----------
    largest_whole
        Up to so many ops a graph that does not fall apart is one segment.
    share, transfer_share, bound_share, find_share
        For series without transfers, then with them, for the bounds of the whole after a round, and to find segments.
    work, growth
        Deterministic seconds of CP-SAT per series in the first round, and the factor for every further one.
    again_work
        Work up to which series are searched without transfers where one comes again and again, as a layer does.
    joins
        Whether best schedules of series without their traffic are put together.
    """

    largest_whole: int = 250
    share: float = 0.5
    work: float = 0.1
    growth: float = 4.0
    again_work: float = 0.2
    transfer_share: float = 0.6
    bound_share: float = 0.1
    find_share: float = 0.25
    joins: bool = True


def segments_of(
    instance: Instance, bounds: Bounds, seconds: float, params: SegmentParams = SegmentParams()
) -> list[GraphSegment]:
    """The segments between cut ops of what leads to the op that is done last; none if it does not fall apart.

    Parameters
    ----------
    seconds
        What the phase and all later ones have.
    """
    followers = [op for op in range(instance.op_count) if op not in instance.sources]
    if not followers:
        return []
    last = max(followers, key=lambda op: bounds.head[op] + instance.shortest[op])
    segments = find_segments(instance, last, params.find_share * seconds)
    return segments if len(segments) > 1 or instance.op_count <= params.largest_whole else []


def work_outside(instance: Instance, segments: Sequence[GraphSegment]) -> float:
    """The share of all ops' shortest times that lies in no segment: what their schedules leave to gaps."""
    inside = {op for segment in segments for op in segment.ops}
    return 1.0 - sum(instance.shortest[op] for op in inside) / max(1, sum(instance.shortest))


def solve_segments(
    instance: Instance,
    segments: list[GraphSegment],
    bounds: Bounds,
    incumbent: Incumbent,
    params: SegmentParams = SegmentParams(),
) -> Bounds:
    """Solve the segments between cut ops, in rounds of growing work; the bounds of the whole follow from theirs."""
    if not segments:
        return bounds
    budget = incumbent.budget
    stop_at = now() + params.share * budget.left_s
    chain = SegmentChain.of(instance, segments, budget)
    work = params.work
    # Where links are contended and a series comes again and again, its schedules with transfers are worth more.
    hurry = instance.traffic is not None and any(chain.comes_again(series.instance) for series in chain.open)
    while len(chain.segments) > 1 and budget.left_s:
        ends = not chain.open or now() > stop_at or (hurry and work > params.again_work)
        if ends or not hurry:
            # The bounds of a hundred thousand ops take two seconds, as long as a round of one layer's series.
            bounds = chain.raised(bounds, params.bound_share * budget.left_s)
            incumbent.raise_bound(bounds.makespan)
        for schedule in chain.candidates() if params.joins and not hurry else ():
            incumbent.offer(schedule)
        if incumbent.closed or ends or (not hurry and now() > stop_at):
            break
        chain.advance(work, stop_at, search_series)
        work *= params.growth
    if len(chain.segments) > 1 and not incumbent.closed:
        bounds = raise_suffix_bounds(chain, bounds, incumbent)
    if instance.traffic is not None and len(chain.segments) > 1 and budget.left_s:
        stop_at = now() + params.transfer_share * budget.left_s
        bounds = search_with_transfers(chain, instance.traffic, incumbent, bounds, stop_at)
    return bounds
