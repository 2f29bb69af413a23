"""The stage phase: where memory is short, a bound over the chain of segments, and the placements that lead to it."""

from dataclasses import dataclass, replace

from dlplacer.problem.live_memory import stashes
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.bounds.one_machine import reachable_capacity
from dlplacer.solvers.decomposition.stage_bound import StageBoundParams, StageDual
from dlplacer.solvers.decomposition.stages import build_stages
from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.heuristics.occupancy import fitted
from dlplacer.solvers.heuristics.orders import by_rank, program_order, upward_ranks
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.time_limit import now


@dataclass(frozen=True)
class StagePhaseParams:
    """Limits of the phase.

    Attributes
    ----------
    most_ops
        Larger graphs take seconds for every set of prices.
    dual_share
        Of the time, for the bound; the rest is for placements.
    placements
        Placements that are scheduled.
    """

    most_ops: int = 20_000
    dual_share: float = 0.7
    placements: int = 12


def search_stages(
    problem: Problem,
    instance: Instance,
    bounds: Bounds,
    incumbent: Incumbent,
    seconds: float,
    params: StagePhaseParams = StagePhaseParams(),
) -> None:
    """Raise the bound, and offer list schedules on the placements that come up.

    Nothing where all ops fit on every device, or where there are too many devices.
    """
    began, kept = now(), stashes(problem)
    everything = sum(instance.footprint) + sum(stash.size for stash in kept)
    binds = any(room is not None and room < everything for room in instance.capacity)
    followers = [op for op in range(instance.op_count) if op not in instance.sources]
    few = instance.device_count <= StageBoundParams().most_devices and instance.op_count <= params.most_ops
    if not binds or not followers or not few or incumbent.closed:
        return
    last = max(followers, key=lambda op: bounds.head[op] + instance.shortest[op])
    chain = build_stages(instance, last, kept, seconds * (1 - params.dual_share))
    if not chain.stages:
        return
    sizes = [*instance.footprint, *(stash.size for stash in kept)]
    dual = StageDual(replace(instance, capacity=tuple(reachable_capacity(sizes, instance.capacity))), chain)
    enough = FAR if incumbent.best is None else incumbent.best.makespan
    incumbent.raise_bound(dual.solve(began + params.dual_share * seconds, enough))
    ranks, order = [by_rank(instance, upward_ranks(instance, weight)) for weight in (1.0, 0.0)], program_order(instance)
    for wished in dual.placements()[: params.placements]:
        placement = fitted(instance, wished, order)
        for rank in ranks if placement is not None else ():
            if now() > began + seconds or incumbent.closed:
                return
            incumbent.offer(list_schedule(instance, rank, placement))
