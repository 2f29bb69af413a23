"""The phases of the default method after its first schedules: bounds, segments, annealing, windows, the whole model."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from dlplacer.core.errors import InternalError
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds.bounds import Bounds, lower_bounds
from dlplacer.solvers.decomposition.contraction import Contracted, reduction
from dlplacer.solvers.decomposition.lns import search_windows
from dlplacer.solvers.decomposition.master import MasterProblem
from dlplacer.solvers.decomposition.segment_search import (
    SegmentParams,
    SolvedSegments,
    segments_of,
    solve_segments,
    work_outside,
)
from dlplacer.solvers.decomposition.segments import GraphSegment
from dlplacer.solvers.decomposition.series_search import search_series
from dlplacer.solvers.decomposition.stage_search import search_stages
from dlplacer.solvers.feasibility.explanation import explain_overflow
from dlplacer.solvers.feasibility.graph_size import EXACT_UP_TO
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, search
from dlplacer.solvers.ilp.exact_model import solve_exactly
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.ilp.serial_model import build_serial_model, serial_path
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, keeps_blocks_and_memory
from dlplacer.solvers.local_search.compile_ahead import ANNEALING_CODE, PATH_CODE, compile_in_thread, seconds_to_load
from dlplacer.solvers.local_search.critical_swaps import swap_critical
from dlplacer.solvers.local_search.kept_code import is_kept


@dataclass(frozen=True)
class PhaseParams:
    """How the default method divides its time.

    Shares are of the time that is left when a phase begins. Together they leave each later phase something at any
    limit; they were chosen on Inception-V3 and the benchmark families by hand, never tuned one by one.

    Attributes
    ----------
    bound_share
        For the combinatorial bounds; they end early on small graphs.
    stage_share
        For the bound over stages where memory is short: it took layers of parallel ops on four unequal devices from a
        gap of 57 % to 14, in 0.1 s on a quiet core, and ends when its prices are the best.
    segments, sparse_segments
        What is spent on segments, and where they are sparse.
    sparse_from, sparse_from_ops
        Work outside all segments, and ops, from which these are sparse: then they bring a bound, but hardly plans.
        GPT-2's weight gradients are 27 % of its training step's work.
    master_share
        For the master problem: at most 5 % of a plan's improvement, so it comes after the segments.
    anew_share
        For placing segments anew after annealing: what is left then brought nothing on eight GPUs, nor did windows.
    restart_share, restarts
        For randomized restarts, and their number. In a minute 500 ops allow 6,000 of them, 2,000 ops 800.
    swap_share
        For orders on devices and links where links are contended: a second at 2,000 ops, and it took Inception on four
        GPUs from a gap of 1.0 % to 0.3.
    anneal_share, compile_patience
        For annealing where links are contended, ahead of what else improves plans; and the share of that for which it
        waits for its code, if that is being compiled.
    anneal_ahead_share, anneal_ahead_up_to
        For annealing ahead of sparse segments, and ops up to which it brings something in half a minute: GPT-2's
        training step with 48 layers fell from 362 to 347 ms on four GPUs.
    serial_share, serial_compile_s
        For annealing placements of ops that run one after another where memory is short, and for their model; and
        seconds from which annealing is worth the compilation of its code.
    exact_up_to, whole_up_to
        Working ops up to which the model with transfers and memory over time, and the model without, are solved as a
        whole. CP-SAT alone improves no plan of 2,000 ops in a minute; the limits themselves are guesses.
    whole_share
        For the model of a small problem; the exact one gets as much of the rest.
    windows_share, windows_patience
        For windows ahead of the whole model, and how many in a row may bring nothing.
    """

    bound_share: float = 0.1
    stage_share: float = 0.25
    segments: SegmentParams = field(default_factory=SegmentParams)
    sparse_segments: SegmentParams = field(default_factory=lambda: SegmentParams(transfer_share=0.3, joins=False))
    sparse_from: float = 0.05
    sparse_from_ops: int = 2000
    master_share: float = 0.6
    anew_share: float = 0.5
    restart_share: float = 0.1
    restarts: int = 150
    swap_share: float = 0.1
    anneal_share: float = 0.5
    compile_patience: float = 0.5
    anneal_ahead_share: float = 0.4
    anneal_ahead_up_to: int = 20_000
    serial_share: float = 0.4
    serial_compile_s: float = 5.0
    exact_up_to: int = EXACT_UP_TO
    whole_up_to: int = 600
    whole_share: float = 0.8
    windows_share: float = 0.3
    windows_patience: int = 200


PARAMS = PhaseParams()


def search_phases(
    problem: Problem,
    instance: Instance,
    incumbent: Incumbent,
    surrogate: Instance | None = None,
    elsewhere: Callable[[], None] = lambda: None,
    is_part: bool = False,
) -> None:
    """All phases after the first schedules, with a search elsewhere between those that prove and those that improve.

    Parameters
    ----------
    is_part
        Whether the problem is a restricted one, of which plans count and bounds do not.
    """
    instance, surrogate, incumbent = _contract(problem, instance, surrogate or instance, incumbent)
    solved = SolvedSegments(_bound(problem, instance, incumbent))
    working = instance.working_count
    _solve_serial(problem, instance, incumbent)
    segments, are_sparse = _find_segments(instance, solved.bounds, incumbent)
    if incumbent.refused and working > PARAMS.exact_up_to:
        # Segments are placed without memory over time: where it is short they bring bounds, but hardly plans.
        _anneal(surrogate, incumbent, PARAMS.anneal_share, 0.0)
    elif are_sparse and instance.op_count <= PARAMS.anneal_ahead_up_to:
        _anneal(surrogate, incumbent, PARAMS.anneal_ahead_share, 0.0)
    if not (are_sparse and is_part):
        params = PARAMS.sparse_segments if are_sparse else PARAMS.segments
        solved = _solve_segments(instance, segments, solved.bounds, incumbent, params)
        if not (are_sparse or is_part):
            # Mostly a bound, which of a part does not count: Inception's training step on eight GPUs was 75 ms after
            # half a minute with it, and is 69 without, as on four of them.
            _reconcile_segments(solved, incumbent)
    swap_critical(instance, incumbent, PARAMS.swap_share * incumbent.budget.left_s)
    if working > PARAMS.exact_up_to:
        _anneal(surrogate, incumbent, PARAMS.anneal_share)
        search_elsewhere(elsewhere, incumbent)
        _draw_anew(solved, incumbent)
    _restart(surrogate, incumbent)
    if working <= PARAMS.exact_up_to:
        _solve_whole(instance, solved.bounds, incumbent, PARAMS.whole_share)
        _solve_exactly(problem, instance, solved.bounds, incumbent)
        search_elsewhere(elsewhere, incumbent)
    elif working <= PARAMS.whole_up_to:
        _search_windows(instance, surrogate, incumbent, PARAMS.windows_share, PARAMS.windows_patience)
        _solve_whole(instance, solved.bounds, incumbent, 1.0)
    if surrogate.traffic is not None and working > PARAMS.exact_up_to:
        _search_windows(instance, surrogate, incumbent, PARAMS.windows_share, PARAMS.windows_patience)
        _anneal(surrogate, incumbent, 1.0)
        swap_critical(instance, incumbent, PARAMS.swap_share * incumbent.budget.left_s)
    # Patience in proportion to the ops: windows lie at random, and each place deserves its tries.
    _search_windows(instance, surrogate, incumbent, 1.0, PARAMS.windows_patience * instance.op_count)


def go_on(instance: Instance, incumbent: Incumbent, surrogate: Instance) -> None:
    """Restarts and windows, drawn anew, for as long as there is time and no proof: only a proof ends a search early."""
    while incumbent.best is not None and not incumbent.closed and incumbent.budget.left_s:
        incumbent.budget = replace(incumbent.budget, seed=incumbent.budget.seed + 1)
        _restart(surrogate, incumbent)
        _search_windows(instance, surrogate, incumbent, 1.0, PARAMS.windows_patience)


def search_elsewhere(elsewhere: Callable[[], None], incumbent: Incumbent) -> None:
    """Parts of the machine and stricter options, where the problem itself is not solved yet."""
    if not incumbent.closed:
        elsewhere()
        incumbent.follow()


def _contract(
    problem: Problem, instance: Instance, surrogate: Instance, incumbent: Incumbent
) -> tuple[Instance, Instance, Incumbent]:
    """Ops of no time contracted where that costs nothing: Inception's forward pass falls from 880 ops to 407."""
    found = reduction(instance) if problem.options.memory == "sum" else None
    if found is None or incumbent.best is None:
        return instance, surrogate, incumbent
    return found.reduced, found.reduced, Contracted(found, incumbent)


def _bound(problem: Problem, instance: Instance, incumbent: Incumbent) -> Bounds:
    """Combinatorial bounds: they need no solver, and give all later models their time windows."""
    bounds = lower_bounds(instance, PARAMS.bound_share * incumbent.budget.left_s)
    incumbent.raise_bound(bounds.makespan)
    search_stages(problem, instance, bounds, incumbent, PARAMS.stage_share * incumbent.budget.left_s)
    return bounds


def _solve_serial(problem: Problem, instance: Instance, incumbent: Incumbent) -> None:
    """Where memory is short and ops run one after another: an assignment, all that is left to decide."""
    best = incumbent.best
    if best is None or incumbent.closed or not instance.memory_binds:
        return
    path = serial_path(instance)
    if not path:
        return
    if len(path) <= PARAMS.exact_up_to:
        _assign(problem, instance, incumbent, path)
    seconds = PARAMS.serial_share * incumbent.budget.left_s
    worth = not incumbent.closed and (is_kept(*PATH_CODE) or seconds > PARAMS.serial_compile_s)
    if worth and compile_in_thread(PATH_CODE, lambda: not incumbent.budget.left_s):
        from dlplacer.solvers.local_search.serial_annealing import anneal_serial

        anneal_serial(instance, incumbent, path, seconds)
    if len(path) > PARAMS.exact_up_to:
        _assign(problem, instance, incumbent, path)


def _assign(problem: Problem, instance: Instance, incumbent: Incumbent, path: list[int]) -> None:
    """The model of placements alone, whose optimum no schedule beats."""
    best = incumbent.best
    if best is None or incumbent.closed:
        return
    model, variables = build_serial_model(problem, instance, path, best)
    seconds = PARAMS.serial_share * incumbent.budget.left_s
    if search(model, variables, instance, incumbent, seconds, relaxes_well=True) is SearchEnd.INFEASIBLE:
        raise InternalError(
            f"CP-SAT finds no assignment of at most {best.makespan} ticks, where one is known; please report this "
            "graph and topology"
        )


def _find_segments(instance: Instance, bounds: Bounds, incumbent: Incumbent) -> tuple[list[GraphSegment], bool]:
    """What runs between cut ops, and whether that leaves so much out that it brings hardly any plans."""
    if incumbent.closed or not incumbent.budget.left_s:
        return [], False
    segments = segments_of(instance, bounds, incumbent.budget.left_s, PARAMS.segments)
    is_large = instance.traffic is not None and instance.op_count > PARAMS.sparse_from_ops
    return segments, is_large and work_outside(instance, segments) > PARAMS.sparse_from


def _solve_segments(
    instance: Instance, segments: list[GraphSegment], bounds: Bounds, incumbent: Incumbent, params: SegmentParams
) -> SolvedSegments:
    """Segments between cut ops: each is small enough to prove, and their bounds add up, which CP-SAT does not see."""
    if incumbent.closed or not incumbent.budget.left_s:
        return SolvedSegments(bounds)
    return solve_segments(instance, segments, bounds, incumbent, params)


def _reconcile_segments(solved: SolvedSegments, incumbent: Incumbent) -> None:
    """The master problem: series that share blocks may each want them on another device."""
    chain = solved.chain
    if chain is None or incumbent.closed or not incumbent.budget.left_s:
        return
    last = chain.segments[-1].ops[-1]
    after = chain.instance.shortest[last] + solved.bounds.tail[last]

    def offer(ticks: int, schedules: Iterable[Schedule]) -> int | None:
        incumbent.raise_bound(ticks + after)
        for schedule in schedules:
            incumbent.offer(schedule)
        return None if incumbent.closed or incumbent.best is None else incumbent.best.makespan - after - 1

    stop_at = time.monotonic() + PARAMS.master_share * incumbent.budget.left_s
    MasterProblem(chain).reach(search_series, offer, stop_at)


def _draw_anew(solved: SolvedSegments, incumbent: Incumbent) -> None:
    """Other placements of the segments: from which one orders are improved decides how far they lead."""
    if solved.transfers is not None:
        solved.transfers.draw_anew(time.monotonic() + PARAMS.anew_share * incumbent.budget.left_s)


def _restart(surrogate: Instance, incumbent: Incumbent) -> None:
    """Randomized restarts: ops outside all segments, and graphs without any, have had list schedules only so far."""
    improve(surrogate, incumbent, PARAMS.restart_share * incumbent.budget.left_s, PARAMS.restarts)


def _anneal(surrogate: Instance, incumbent: Incumbent, share: float, patience: float = PARAMS.compile_patience) -> None:
    """Moves of single ops with all transfers in their queues: windows know delays only, and those of idle links."""
    seconds = share * incumbent.budget.left_s
    if surrogate.traffic is None or incumbent.closed or not seconds:
        return
    asked = time.monotonic()
    load_s = seconds_to_load(patience * seconds)
    seconds -= time.monotonic() - asked
    if seconds > load_s and compile_in_thread(ANNEALING_CODE, lambda: not incumbent.budget.left_s):
        from dlplacer.solvers.local_search.anneal import anneal_schedule

        anneal_schedule(surrogate, incumbent, seconds)


def _search_windows(instance: Instance, surrogate: Instance, incumbent: Incumbent, share: float, patience: int) -> None:
    """Windows of the best schedule solved exactly: on 2,000 ops they cut a gap of 6.4 % to 1.6, CP-SAT alone to 6.3.

    Where memory over time is short, windows of the instance, which do not know it, would give no plans.
    """
    best = incumbent.best
    known = best is not None and keeps_blocks_and_memory(surrogate, best)
    search_windows(surrogate if known else instance, incumbent, share * incumbent.budget.left_s, patience)


def _solve_whole(instance: Instance, bounds: Bounds, incumbent: Incumbent, share: float) -> None:
    """The model without transfers and without memory over time: exact under the paper's options, else a bound."""
    best = incumbent.best
    if best is None or incumbent.closed or not incumbent.budget.left_s:
        return
    stop_at = time.monotonic() + share * incumbent.budget.left_s
    model, variables = build_model(instance, bounds, best.makespan, best)
    end = search(model, variables, instance, incumbent, stop_at - time.monotonic())
    if end is SearchEnd.INFEASIBLE:
        raise InternalError(
            f"CP-SAT finds no schedule of at most {best.makespan} ticks, where one is known; please report this graph "
            "and topology"
        )


def _solve_exactly(problem: Problem, instance: Instance, bounds: Bounds, incumbent: Incumbent) -> None:
    """The model with transfers and memory over time: the only phase that proves under every option."""
    if not solve_exactly(problem, instance, bounds, incumbent, PARAMS.whole_share * incumbent.budget.left_s):
        raise explain_overflow(problem)
