"""The default method: bounds and heuristics, segments between cut ops, windows, and the whole model."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from dlplacer.core.errors import InternalError
from dlplacer.problem.live_memory import may_bind
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds.bounds import Bounds, lower_bounds
from dlplacer.solvers.decomposition.contraction import Contracted, reduction
from dlplacer.solvers.decomposition.device_subset import SubsetIncumbent, on_device_subset
from dlplacer.solvers.decomposition.lns import repair
from dlplacer.solvers.decomposition.master import MasterProblem
from dlplacer.solvers.decomposition.segment_rows import charge_idle_ends
from dlplacer.solvers.decomposition.segments import Series, find_segments
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.suffix_bounds import suffixes
from dlplacer.solvers.decomposition.with_transfers import solve_with_transfers
from dlplacer.solvers.feasibility import explain_overflow
from dlplacer.solvers.heuristics.common.pack import choose_components
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS, construct, construct_on_placement
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.ilp.cp_sat_search import search
from dlplacer.solvers.ilp.exact_model import solve_exactly
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission, first_admitted, surrogates
from dlplacer.solvers.instance.outcome import Budget, Outcome, ProblemSchedule
from dlplacer.solvers.instance.schedule import Schedule, in_sequence, keeps_blocks_and_memory

_RESERVE_SHARE, _RESERVE_S, _RESERVE_S_PER_OP = 0.1, 0.02, 2.5e-4
_START_SHARE = 0.1
_ADMITTED_SHARE = 0.3
_SURE, _MANY = 2, 1000
_BOUND_SHARE = 0.1
_IMPROVE_SHARE, _IMPROVE_ROUNDS = 0.1, 150
_SEGMENT_SHARE, _SEGMENT_WORK, _SEGMENT_GROWTH, _SEGMENT_ROUNDS = 0.5, 0.1, 4.0, 30
_SUFFIX_SIZES, _SUFFIX_SHARE, _SUFFIX_WORK = (15, 30, 60), 0.05, 1.0
_MASTER_SHARE = 0.6
_TINY, _LARGE, _LARGEST_CHAIN, _LARGEST_SERIES = 40, 600, 6000, 250
_TRANSFER_SHARE = 0.6
_SUBSET_SHARE = 0.5
_WHOLE_SHARE, _REPAIR_SHARE, _PATIENCE = 0.8, 0.3, 200

Start = Callable[[Problem, Instance], Schedule | None]
"""A heuristic; None where it runs out of memory."""


def solve_ilp(problem: Problem, budget: Budget, starts: Iterable[tuple[float, Start]]) -> Outcome:
    """The best schedule found within the budget, and a makespan that none can beat.

    It begins with the schedules of all heuristics that fit into a tenth of the time, at least two, so that no plan is
    worse than theirs.

    Parameters
    ----------
    starts
        The heuristics, the quick ones first, each with its cost relative to the others: those that would not fit into
        the time are left out.

    Raises
    ------
    InfeasibleError
        If no plan can exist; names the constraint to blame.
    InternalError
        If a proven bound contradicts a schedule.
    """
    reserve = min(_RESERVE_SHARE * budget.left_s, _RESERVE_S + _RESERVE_S_PER_OP * problem.op_count)
    instance = build_instance(problem)
    incumbent = Incumbent(replace(budget, deadline=budget.deadline - reserve), admission(problem, instance))
    _solve(problem, instance, incumbent, starts)
    best = incumbent.best
    return Outcome(None if best is None else ProblemSchedule.of(problem, instance, best), incumbent.bound)


def _solve(problem: Problem, instance: Instance, incumbent: Incumbent, starts: Iterable[tuple[float, Start]]) -> None:
    budget = incumbent.budget
    surrogate = _begin(problem, instance, incumbent, list(starts))
    _try_device_subset(surrogate, incumbent)
    found = reduction(instance) if problem.options.memory == "sum" else None
    if found is not None and incumbent.best is not None:
        instance = surrogate = found.reduced
        incumbent = Contracted(found, incumbent)
    bounds = lower_bounds(instance, _BOUND_SHARE * budget.left_s)
    incumbent.raise_bound(bounds.makespan)
    if not incumbent.closed and instance.op_count <= _LARGEST_CHAIN:
        bounds, chain = _solve_segments(instance, bounds, incumbent)
        if chain is not None and not incumbent.closed:
            _solve_master(chain, bounds, incumbent, time.monotonic() + _MASTER_SHARE * budget.left_s)
    improve(surrogate, incumbent, _IMPROVE_SHARE * budget.left_s, _IMPROVE_ROUNDS)
    working = sum(ticks > 0 for ticks in instance.longest)
    if working <= _TINY:
        _solve_whole(instance, bounds, incumbent, _WHOLE_SHARE * budget.left_s)
        if not solve_exactly(problem, instance, bounds, incumbent, _WHOLE_SHARE * budget.left_s):
            raise explain_overflow(problem)
    elif working <= _LARGE:
        repair(instance, incumbent, _REPAIR_SHARE * budget.left_s, _PATIENCE)
        _solve_whole(instance, bounds, incumbent, budget.left_s)
    repair(instance, incumbent, budget.left_s, _PATIENCE * instance.op_count)


def _offer_single(instance: Instance, incumbent: Incumbent) -> None:
    """Offer all ops on the device that takes least time for them and has the memory."""
    devices = [d for d in range(instance.device_count) if all(d in devices for devices in instance.allowed)]
    for device in sorted(devices, key=lambda device: sum(row[device] for row in instance.duration)):
        alone = in_sequence(instance, [device] * instance.op_count, instance.order)
        if keeps_blocks_and_memory(instance, alone) and incumbent.offer(alone):
            return


def _begin(
    problem: Problem, instance: Instance, incumbent: Incumbent, starts: Sequence[tuple[float, Start]]
) -> Instance:
    """Offer first schedules; the instance that heuristics do well to search on."""
    budget = incumbent.budget
    start_until = time.monotonic() + _START_SHARE * budget.left_s
    for surrogate in (instance, *surrogates(problem)):
        _offer_single(surrogate, incumbent)
        pace, sure = 0.0, _SURE
        if surrogate.op_count > _MANY:
            began, sure = time.monotonic(), 0
            incumbent.offer(list_schedule(choose_components(surrogate), by_rank(surrogate, upward_ranks(surrogate))))
            pace = len(DELAY_WEIGHTS) * (time.monotonic() - began)
        for number, (cost, start) in enumerate(starts):
            began = time.monotonic()
            if number < sure or began + cost * pace < start_until:
                incumbent.offer(start(problem, surrogate))
                pace = max(pace, (time.monotonic() - began) / cost)
        if incumbent.best is None:
            incumbent.offer(construct_on_placement(problem, surrogate, list_schedule, budget.left_s / 2))
        if incumbent.best is not None:
            break
    else:
        surrogate = instance
    return _offer_admitted(problem, instance, incumbent, starts) or surrogate


def _offer_admitted(
    problem: Problem, instance: Instance, incumbent: Incumbent, starts: Sequence[tuple[float, Start]]
) -> Instance | None:
    """Where memory binds, offer what every heuristic reaches by itself; the surrogate of the best."""
    if not may_bind(problem):
        return None
    stop_at = time.monotonic() + _ADMITTED_SHARE * incumbent.budget.left_s
    best = None
    for _, start in starts:
        if incumbent.budget.left_s and (incumbent.best is None or time.monotonic() < stop_at):
            found = first_admitted(problem, instance, partial(start, problem))
            if found is not None and incumbent.offer(found[0]):
                best = found[1]
    return best


def _try_device_subset(instance: Instance, incumbent: Incumbent) -> None:
    """Where links are contended on many devices, search on the best-connected few first."""
    subset = (
        on_device_subset(instance) if instance.traffic is not None and instance.op_count <= _LARGEST_CHAIN else None
    )
    if subset is None or incumbent.closed:
        return
    subset_incumbent = SubsetIncumbent(incumbent, time.monotonic() + _SUBSET_SHARE * incumbent.budget.left_s)
    subset_incumbent.offer(construct(subset, list_schedule))
    if subset_incumbent.best is None:
        return
    bounds = lower_bounds(subset, _BOUND_SHARE * subset_incumbent.budget.left_s)
    subset_incumbent.raise_bound(bounds.makespan)
    _solve_segments(subset, bounds, subset_incumbent, transfer_share=1.0)
    improve(subset, subset_incumbent, _IMPROVE_SHARE * subset_incumbent.budget.left_s, _IMPROVE_ROUNDS)


def _solve_segments(
    instance: Instance, bounds: Bounds, incumbent: Incumbent, transfer_share: float = _TRANSFER_SHARE
) -> tuple[Bounds, SegmentChain | None]:
    """Solve the segments between cut ops, in rounds of growing length; the bounds of the whole that follow.

    With the bounds comes the chain of the segments, None if the graph does not fall apart.

    Parameters
    ----------
    transfer_share
        Share of the time that is left then for segments with their traffic, if there is any.
    """
    budget = incumbent.budget
    stop_at = time.monotonic() + _SEGMENT_SHARE * budget.left_s
    followers = [op for op in range(instance.op_count) if op not in instance.sources]
    if not followers:
        return bounds, None
    last = max(followers, key=lambda op: bounds.head[op] + instance.shortest[op])
    if instance.op_count > _LARGEST_SERIES and len(find_segments(instance, last)) < 2:
        return bounds, None
    chain = SegmentChain(instance, last, budget)
    work = _SEGMENT_WORK
    while len(chain.segments) > 1 and budget.left_s:
        bounds = chain.raised(bounds, _BOUND_SHARE * budget.left_s)
        incumbent.raise_bound(bounds.makespan)
        for schedule in chain.candidates():
            incumbent.offer(schedule)
        if incumbent.closed or not chain.open or time.monotonic() > stop_at:
            break
        chain.advance(work, stop_at, search_series)
        work *= _SEGMENT_GROWTH
    if len(chain.segments) > 1 and not incumbent.closed:
        bounds = raise_suffix_bounds(chain, bounds, incumbent)
    if instance.traffic is not None and len(chain.segments) > 1 and budget.left_s:
        bounds = solve_with_transfers(chain, bounds, incumbent, time.monotonic() + transfer_share * budget.left_s)
    return bounds, chain if len(chain.series) > 1 else None


def raise_suffix_bounds(chain: SegmentChain, bounds: Bounds, incumbent: Incumbent) -> Bounds:
    """Bounds raised by what follows the last cut ops of a chain."""
    budget, tail = incumbent.budget, list(bounds.tail)
    for cut, part in suffixes(chain.instance, chain.segments, _SUFFIX_SIZES):
        stop_at = time.monotonic() + _SUFFIX_SHARE * budget.left_s
        chain.bounds[part] = lower_bounds(part, _BOUND_SHARE * (stop_at - time.monotonic()))
        known = chain.incumbents[part] = chain.begin(part)
        known.budget = chain.budget_of(stop_at - time.monotonic())
        search_series(chain, Series((), part), _SUFFIX_WORK)
        tail[cut] = max(tail[cut], known.bound)
    bounds = lower_bounds(chain.instance, _BOUND_SHARE * budget.left_s, bounds.head, tail)
    incumbent.raise_bound(bounds.makespan)
    return bounds


def _solve_master(chain: SegmentChain, bounds: Bounds, incumbent: Incumbent, stop_at: float) -> None:
    """Let the series agree on the devices of what they share."""
    last = chain.segments[-1].ops[-1]
    after = chain.instance.shortest[last] + bounds.tail[last]

    def offer(ticks: int, schedules: list[Schedule]) -> int | None:
        incumbent.raise_bound(ticks + after)
        for schedule in schedules:
            incumbent.offer(schedule)
        return None if incumbent.closed or incumbent.best is None else incumbent.best.makespan - after - 1

    MasterProblem(chain).reach(search_series, offer, stop_at)


def search_series(chain: SegmentChain, series: Series, work: float, most: int | None = None) -> None:
    """Improve and prove the best schedule of a series of segments, with some deterministic seconds of CP-SAT.

    Parameters
    ----------
    most
        Makespans above it are of no interest: it suffices to prove that there is none of at most so many ticks.
    """
    instance, incumbent = series.instance, chain.incumbents[series.instance]
    improve(instance, incumbent, incumbent.budget.left_s, _SEGMENT_ROUNDS)
    best = incumbent.best
    if best is None or incumbent.closed or not incumbent.budget.left_s:
        return
    upper = best.makespan if most is None else min(best.makespan, most)
    if upper < incumbent.bound:
        return
    bounds = chain.bounds[instance]
    if bounds.makespan > upper:
        incumbent.raise_bound(upper + 1)
        return
    model, variables = build_model(instance, bounds, upper, best if upper == best.makespan else None)
    for segment, offset in chain.spans(series):
        charge_idle_ends(model, instance, variables, segment, chain.bounds[segment.instance], offset)
        last = variables.start[offset + len(segment.ops) - 1]
        model.add(last - (0 if segment.begins else variables.start[offset]) >= chain.least_ticks(segment))
    solved = search(model, variables, instance, incumbent, incumbent.budget.left_s, work)
    if not solved and upper < best.makespan:
        incumbent.raise_bound(upper + 1)


def _solve_whole(instance: Instance, bounds: Bounds, incumbent: Incumbent, seconds: float) -> None:
    best = incumbent.best
    if best is None or incumbent.closed or not incumbent.budget.left_s:
        return
    began = time.monotonic()
    model, variables = build_model(instance, bounds, best.makespan, best)
    if not search(model, variables, instance, incumbent, began + seconds - time.monotonic()):
        raise InternalError(
            f"CP-SAT finds no schedule of at most {best.makespan} ticks, where one is known; please report this graph "
            "and topology"
        )
