"""The series of a chain once more, with what they send: links carry one transfer at a time inside each."""

import time
from copy import copy
from dataclasses import replace

from dlplacer.core.errors import InternalError
from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.decomposition.low_traffic import low_traffic
from dlplacer.solvers.decomposition.segment_rows import charge_idle_ends
from dlplacer.solvers.decomposition.segments import Series, with_traffic
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.ilp.cp_sat_search import search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.schedule import compact

_ADVANCE_SHARE, _WORK, _GROWTH, _ROUNDS = 0.5, 0.4, 3.0, 30
_SLACKS, _THRIFT, _PATIENCE = (0.0, 0.01, 0.03), 0.12, 2
_BOUND_SHARE = 0.05


def solve_with_transfers(chain: SegmentChain, bounds: Bounds, incumbent: Incumbent, stop_at: float) -> Bounds:
    """Solve the series of a chain with their traffic, in rounds of growing length; the bounds that follow.

    Of their best schedules those that send little make up schedules of the whole, others in every round: it ends
    when several rounds in a row have brought nothing. The bounds count only if no route that a transfer may take is
    left out.
    """
    loaded, budget = with_load(chain), incumbent.budget
    complete = chain.instance.traffic is not None and chain.instance.traffic.routes.complete
    work, idle, number = _WORK, 0, 0
    while idle < _PATIENCE and budget.left_s and (now := time.monotonic()) < stop_at and not incumbent.closed:
        reached = incumbent.bound, incumbent.best
        loaded.budget = loaded.budget_of(min(stop_at - now, budget.left_s))
        if not number or (complete and loaded.open):
            loaded.advance(work, now + _ADVANCE_SHARE * (stop_at - now), search_with_transfers)
            if complete:
                bounds = loaded.raised(bounds, _BOUND_SHARE * budget.left_s)
                incumbent.raise_bound(bounds.makespan)
            for schedule in loaded.candidates():
                incumbent.offer(schedule)
        for slack in _SLACKS:
            for schedule in low_traffic(loaded, slack, _THRIFT, budget.seed + number):
                incumbent.offer(schedule)
        idle = idle + 1 if reached == (incumbent.bound, incumbent.best) else 0
        work, number = work * _GROWTH, number + 1
    return bounds


def with_load(chain: SegmentChain) -> SegmentChain:
    """A chain whose series have traffic, and begin with what is known of them without."""
    loaded = copy(chain)
    loaded.__dict__.pop("_position", None)
    loaded.alone = []
    loaded.series = [with_traffic(chain.instance, chain.segments, series) for series in chain.series]
    loaded.bounds, loaded.incumbents = dict(chain.bounds), {}
    for before, series in zip(chain.series, loaded.series, strict=True):
        known, part = chain.incumbents[before.instance], series.instance
        if part in loaded.incumbents:
            continue
        loaded.bounds[part] = replace(chain.bounds[before.instance], makespan=known.bound)
        begun = loaded.begin(part) if chain.budget.left_s else Incumbent(chain.budget)
        loaded.incumbents[part] = begun
        if known.best is not None:
            begun.offer(compact(part, known.best.device, known.best.start))
    return loaded


def search_with_transfers(chain: SegmentChain, series: Series, work: float) -> None:
    """Improve and prove the best schedule of a series with its traffic."""
    instance, incumbent = series.instance, chain.incumbents[series.instance]
    improve(instance, incumbent, incumbent.budget.left_s, _ROUNDS)
    best = incumbent.best
    if best is None or incumbent.closed or not incumbent.budget.left_s:
        return
    model, variables = build_model(instance, chain.bounds[instance], best.makespan, best, with_transfers=True)
    for segment, offset in chain.spans(series):
        charge_idle_ends(model, instance, variables, segment, chain.bounds[segment.instance], offset)
    complete = instance.traffic is None or instance.traffic.routes.complete
    known = incumbent if complete else Incumbent(incumbent.budget)
    solvable = search(model, variables, instance, known, incumbent.budget.left_s, work)
    incumbent.offer(known.best)
    if not solvable and complete:
        raise InternalError(
            f"CP-SAT finds no schedule of a segment of at most {best.makespan} ticks, where one is known; please "
            "report this graph and topology"
        )
