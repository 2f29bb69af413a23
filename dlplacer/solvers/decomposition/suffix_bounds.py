"""Suffix bounds: what follows a cut op, ops that nothing waits for included, such as gradients of weights.

They share the devices with the last segments but are in none of them. All that follows an op starts after its end in
any schedule, so the optimum of the instance of these ops alone bounds the op's tail.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dlplacer.solvers.bounds.bounds import Bounds, lower_bounds
from dlplacer.solvers.decomposition.segments import GraphSegment, Series, relaxed
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import search_series
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import now


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
