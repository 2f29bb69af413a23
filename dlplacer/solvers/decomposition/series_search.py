"""A series of segments, or what follows a cut op, improved and proven: restarts, CP-SAT with rows."""

from collections.abc import Iterator
from dataclasses import dataclass

from dlplacer.core.errors import InternalError
from dlplacer.solvers.bounds import Bounds, lower_bounds
from dlplacer.solvers.decomposition.idle_ends import charge_idle_ends
from dlplacer.solvers.decomposition.segments import GraphSegment, Series, relaxed
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, reader, search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, SchedulesOnly
from dlplacer.solvers.instance.time_limit import now

_RESTARTS = 30
"""Randomized restarts ahead of CP-SAT, which gains from a good hint."""


def search_series(chain: SegmentChain, series: Series, work: float, with_transfers: bool = False) -> None:
    """Improve and prove the best schedule of a series of segments.

    Parameters
    ----------
    work
        Deterministic seconds of CP-SAT.
    with_transfers
        Whether the traffic of the series is part of the model.

    Raises
    ------
    InternalError
        If with transfers there is no schedule as good as one that is known.
    """
    instance, incumbent = series.instance, chain.incumbents[series.instance]
    improve(instance, incumbent, incumbent.budget.left_s, _RESTARTS)
    best = incumbent.best
    if best is None or incumbent.closed or not incumbent.budget.left_s:
        return
    routes = instance.traffic.routes if with_transfers and instance.traffic is not None else None
    model, variables = build_model(instance, chain.bounds[instance], best.makespan, best, with_transfers)
    for segment, offset in chain.spans(series):
        charge_idle_ends(model, instance, variables, segment, chain.bounds[segment.instance], offset)
        if not with_transfers:
            # CP-SAT does not add up bounds of segments, not even proven ones: each has to be said as a row.
            last = variables.start[offset + len(segment.ops) - 1]
            model.add(last - (0 if segment.begins else variables.start[offset]) >= chain.least_ticks(segment))
    exact = routes is None or routes.complete
    known = incumbent if exact else SchedulesOnly(incumbent)
    end = search(model, reader(variables, instance), known, incumbent.budget.left_s, work)
    if not exact and (known.closed or end is not SearchEnd.UNDECIDED):
        chain.exhausted.add(instance)
    if end is SearchEnd.INFEASIBLE and exact and with_transfers:
        raise InternalError(
            f"CP-SAT finds no schedule of a segment of at most {best.makespan} ticks, where one is known; please "
            "report this graph and topology"
        )


@dataclass(frozen=True)
class SuffixParams:
    """The suffixes that are solved, and the effort for each.

    Attributes
    ----------
    sizes
        Working ops of a suffix; each size gives one. Larger ones bound more but are proven less often.
    share, bound_share
        Share of the time that is left, for each, and of that for its bounds.
    work
        Deterministic seconds of CP-SAT for each.
    """

    sizes: tuple[int, ...] = (15, 30, 60)
    share: float = 0.05
    work: float = 1.0
    bound_share: float = 0.1


def raise_suffix_bounds(
    chain: SegmentChain, bounds: Bounds, incumbent: Incumbent, params: SuffixParams = SuffixParams()
) -> Bounds:
    """Bounds raised by what follows the last cut ops of a chain."""
    budget, tail = incumbent.budget, list(bounds.tail)
    for cut, part in suffixes(chain.instance, chain.segments, params.sizes):
        stop_at = now() + params.share * budget.left_s
        chain.bounds[part] = lower_bounds(part, params.bound_share * (stop_at - now()))
        known = chain.incumbents[part] = chain.begin(part)
        known.budget = chain.budget_of(stop_at - now())
        search_series(chain, Series((), part), params.work)
        tail[cut] = max(tail[cut], known.bound)
    if tail != list(bounds.tail):
        bounds = lower_bounds(chain.instance, params.bound_share * budget.left_s, bounds.head, tail)
    incumbent.raise_bound(bounds.makespan)
    return bounds


def suffixes(
    instance: Instance, segments: list[GraphSegment], sizes: tuple[int, ...]
) -> Iterator[tuple[int, Instance]]:
    """The earliest cut op that at most so many working ops follow, and what follows it; for each size in turn.

    Left out are cut ops followed by ops of segments only, of which the segments' own bounds tell as much.

    The part begins with the cut op, in no time; its makespan is the least tail of the op. It has no memory rules.
    """
    inside = {op for segment in segments for op in segment.ops}
    cuts = [segment.ops[0] for segment in segments if not segment.begins]
    cuts += [segment.ops[-1] for segment in segments[-1:]]
    done: set[int] = set()
    for size in sizes:
        chosen: tuple[int, list[int]] | None = None
        for cut in reversed(cuts):
            after = followers(instance, cut)
            if sum(instance.longest[op] > 0 for op in after) > size:
                break
            chosen = cut, after
        if chosen is not None and chosen[0] not in done and not inside.issuperset(chosen[1]):
            done.add(chosen[0])
            yield chosen[0], relaxed(instance, [chosen[0], *chosen[1]], 0)


def followers(instance: Instance, op: int) -> list[int]:
    """All ops to which a path leads from an op, in topological order."""
    found, pending = set[int](), [op]
    while pending:
        for target, _ in instance.successors[pending.pop()]:
            if target not in found:
                found.add(target)
                pending.append(target)
    return [other for other in instance.order if other in found]
