"""The default method, phase by phase: heuristics, bounds, segments between cut ops, windows, and the whole model."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from dlplacer.core.errors import InternalError
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds.bounds import Bounds, critical_path, lower_bounds, whole_area
from dlplacer.solvers.decomposition.contraction import Contracted, reduction
from dlplacer.solvers.decomposition.device_subset import device_subsets
from dlplacer.solvers.decomposition.lns import search_windows
from dlplacer.solvers.decomposition.master import MasterProblem
from dlplacer.solvers.decomposition.segment_search import SegmentParams, solve_segments
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import search_series
from dlplacer.solvers.feasibility import explain_overflow
from dlplacer.solvers.heuristics.common.pack import choose_components
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS, construct_on_placement
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.ilp.cp_sat_search import search
from dlplacer.solvers.ilp.exact_model import solve_exactly
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Begin, Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission, first_admitted, surrogates
from dlplacer.solvers.instance.outcome import Budget, Outcome, ProblemSchedule
from dlplacer.solvers.instance.schedule import Schedule, in_sequence, keeps_blocks_and_memory
from dlplacer.solvers.instance.time_limit import within
from dlplacer.solvers.local_search.kept_code import is_kept
from dlplacer.solvers.restrictions import RestrictionSearch, Start


@dataclass(frozen=True)
class DefaultParams:
    """How the default method divides its time.

    Shares are of the time that is left when a phase begins. Together they leave each later phase something at any
    limit; they were chosen on Inception-V3 and the benchmark families by hand, never tuned one by one.

    Attributes
    ----------
    start_share
        For the heuristics, which give 34 to 92 % of what the plan gains in all.
    memory_share
        For heuristics on surrogates, where memory over time is short; until there is a plan it does not count. Each
        heuristic takes about five schedules there, all of them a third of half a minute at 2,000 ops.
    sure_starts
        Heuristics that run whatever they take, as no plan at all is worse than a late one.
    timed_from
        Ops × devices above which no heuristic is sure to run: a list schedule is timed first, and foretells the others.
    late_share
        For heuristics that had no time at the start.
    bound_share
        For the combinatorial bounds; they end early on small graphs.
    segments
        What is spent on segments.
    master_share
        For the master problem: at most 5 % of a plan's improvement, so it comes after the segments.
    restart_share, restarts
        For randomized restarts, and their number. In a minute 500 ops allow 6,000 of them, 2,000 ops 800.
    anneal_share, compile_s
        For annealing where links are contended, ahead of what else improves plans, and the least time that it gets: its
        code compiles in 7 s, once for all on a machine.
    compiled_from_s, loaded_from_s
        Seconds left from which starts in machine code are worth their compilation, and their loading where the code is
        kept from an earlier process.
    first_share
        For the first list schedule of a large graph without machine code, in place of `start_share`.
    exact_up_to, whole_up_to
        Working ops up to which the model with transfers and memory over time, and the model without, are solved as a
        whole. CP-SAT alone improves no plan of 2,000 ops in a minute; the limits themselves are guesses.
    whole_share
        For the model of a small problem; the exact one gets as much of the rest.
    windows_share, windows_patience
        For windows ahead of the whole model, and how many in a row may bring nothing.
    """

    start_share: float = 0.1
    memory_share: float = 0.4
    sure_starts: int = 2
    timed_from: int = 2000
    late_share: float = 0.3
    bound_share: float = 0.1
    segments: SegmentParams = field(default_factory=SegmentParams)
    master_share: float = 0.6
    restart_share: float = 0.1
    restarts: int = 150
    anneal_share: float = 0.5
    compile_s: float = 8.0
    compiled_from_s: float = 30.0
    loaded_from_s: float = 3.0
    first_share: float = 0.5
    exact_up_to: int = 40
    whole_up_to: int = 600
    whole_share: float = 0.8
    windows_share: float = 0.3
    windows_patience: int = 200


PARAMS = DefaultParams()


def solve_ilp(problem: Problem, budget: Budget, starts: Iterable[tuple[float, Start]], begin: Begin) -> Outcome:
    """The best schedule found within the budget, and a makespan that none can beat.

    It begins with the schedules of all heuristics that fit into a tenth of the time, at least two, so that no plan is
    worse than theirs.

    Parameters
    ----------
    starts
        The heuristics, the quick ones first, each with its cost relative to the others: those that would not fit into
        the time are left out.
    begin
        Called before all else, with an incumbent that is empty: a warm start.

    Raises
    ------
    InfeasibleError
        If no plan can exist; names the constraint to blame.
    InternalError
        If a proven bound contradicts a schedule.
    """
    instance = build_instance(problem)
    incumbent = Incumbent(budget, admission(problem, instance))
    begin(instance, incumbent)
    if not incumbent.closed:
        phases = partial(_run_phases, problem, instance, incumbent, list(starts))
        within(lambda: incumbent.best is not None and not budget.left_s, phases)
    best = incumbent.best
    return Outcome(None if best is None else ProblemSchedule.of(problem, instance, best), incumbent.bound)


def _run_phases(problem: Problem, instance: Instance, incumbent: Incumbent, starts: list[tuple[float, Start]]) -> None:
    """The phases in order. Each goes on from what `incumbent` holds, and does nothing once the gap is closed."""
    incumbent.raise_bound(max(critical_path(instance), whole_area(instance)))
    was_compiled = _start_compiled(problem, instance, incumbent)
    first_share = PARAMS.start_share if was_compiled else PARAMS.first_share
    surrogate, left = _start(problem, instance, incumbent, starts, first_share)
    surrogate = _start_within_memory(problem, instance, incumbent, starts) or surrogate
    elsewhere = RestrictionSearch(problem, instance, incumbent, [start for _, start in starts], _search)
    if instance.traffic is not None:
        _search_elsewhere(elsewhere.run_ahead, incumbent)

    def later() -> None:
        _start_late(problem, surrogate, incumbent, left)
        elsewhere.run()

    _search(problem, instance, incumbent, surrogate, later)
    _go_on(instance, incumbent, surrogate)


def _search(
    problem: Problem,
    instance: Instance,
    incumbent: Incumbent,
    surrogate: Instance | None = None,
    elsewhere: Callable[[], None] = lambda: None,
) -> None:
    """All phases after the starts, with a search elsewhere between those that prove and those that improve."""
    instance, surrogate, incumbent = _contract(problem, instance, surrogate or instance, incumbent)
    bounds = _bound(instance, incumbent)
    bounds, chain = _solve_segments(instance, bounds, incumbent)
    _reconcile_segments(chain, bounds, incumbent)
    working = sum(ticks > 0 for ticks in instance.longest)
    if working > PARAMS.exact_up_to:
        _anneal(surrogate, incumbent, PARAMS.anneal_share)
        _search_elsewhere(elsewhere, incumbent)
    _restart(surrogate, incumbent)
    if working <= PARAMS.exact_up_to:
        _solve_whole(instance, bounds, incumbent, PARAMS.whole_share)
        _solve_exactly(problem, instance, bounds, incumbent)
        _search_elsewhere(elsewhere, incumbent)
    elif working <= PARAMS.whole_up_to:
        _search_windows(instance, incumbent, PARAMS.windows_share, PARAMS.windows_patience)
        _solve_whole(instance, bounds, incumbent, 1.0)
    if surrogate.traffic is not None and working > PARAMS.exact_up_to:
        _search_windows(instance, incumbent, PARAMS.windows_share, PARAMS.windows_patience)
        _anneal(surrogate, incumbent, 1.0)
    # Patience in proportion to the ops: windows lie at random, and each place deserves its tries.
    _search_windows(instance, incumbent, 1.0, PARAMS.windows_patience * instance.op_count)


def _go_on(instance: Instance, incumbent: Incumbent, surrogate: Instance) -> None:
    """Restarts and windows, drawn anew, for as long as there is time and no proof: only a proof ends a search early."""
    while incumbent.best is not None and not incumbent.closed and incumbent.budget.left_s:
        incumbent.budget = replace(incumbent.budget, seed=incumbent.budget.seed + 1)
        _restart(surrogate, incumbent)
        _search_windows(instance, incumbent, 1.0, PARAMS.windows_patience)


def _search_elsewhere(elsewhere: Callable[[], None], incumbent: Incumbent) -> None:
    """Parts of the machine and stricter options, where the problem itself is not solved yet."""
    if not incumbent.closed:
        elsewhere()
        incumbent.follow()


def _start_compiled(problem: Problem, instance: Instance, incumbent: Incumbent) -> bool:
    """Large graphs with link contention: 10,000 ops on 32 devices take half a minute in Python, here 3 s.

    Also on parts of the machine, such as one host of a cluster, for which Python has no time there. Returns whether
    there was time.
    """
    left_s = incumbent.budget.left_s
    worth = instance.traffic is not None and instance.op_count > PARAMS.timed_from and instance.device_count > 1
    if not worth or left_s < (PARAMS.loaded_from_s if is_kept("greedy") else PARAMS.compiled_from_s):
        return False
    from dlplacer.solvers.local_search.greedy import offer_greedy

    whole = tuple(range(instance.device_count))
    offer_greedy(instance, incumbent, (whole, *device_subsets(problem, instance)), PARAMS.start_share * left_s)
    return True


def _start(
    problem: Problem, instance: Instance, incumbent: Incumbent, starts: list[tuple[float, Start]], first_share: float
) -> tuple[Instance, list[tuple[float, Start]]]:
    """Heuristics: most of a plan's quality comes within the first tenth.

    The instance that they do well to search on (where memory over time is short, the first surrogate with a schedule
    that keeps it), and those left out for want of time, each with the seconds that it may take.

    Parameters
    ----------
    first_share
        Of the time that is left, for the first list schedule where there is a plan already.
    """
    budget = incumbent.budget
    first_until = time.monotonic() + first_share * budget.left_s
    start_until = time.monotonic() + PARAMS.start_share * budget.left_s
    for surrogate in (instance, *surrogates(problem)):
        _offer_single_device(surrogate, incumbent)
        pace, sure = 0.0, PARAMS.sure_starts
        if surrogate.op_count * surrogate.device_count > PARAMS.timed_from:
            began, sure = time.monotonic(), 0
            priority = by_rank(surrogate, upward_ranks(surrogate))
            first = partial(list_schedule, choose_components(surrogate), priority)
            incumbent.offer(within(lambda: incumbent.best is not None and time.monotonic() > first_until, first))
            pace = len(DELAY_WEIGHTS) * (time.monotonic() - began)
        left: list[tuple[float, Start]] = []
        for number, (cost, start) in enumerate(starts):
            began = time.monotonic()
            if number < sure or began + cost * pace < start_until:
                incumbent.offer(start(problem, surrogate))
                # Later ones tell less: each loads a library of its own when it first runs.
                pace = pace or (time.monotonic() - began) / cost
            else:
                left.append((cost, start))
        if incumbent.best is None:
            incumbent.offer(construct_on_placement(problem, surrogate, list_schedule, budget.left_s / 2))
        if incumbent.best is not None:
            return surrogate, [(cost * pace, start) for cost, start in left]
    return instance, []


def _start_late(problem: Problem, surrogate: Instance, incumbent: Incumbent, left: list[tuple[float, Start]]) -> None:
    """Heuristics that the first tenth had no time for: the default method shall be behind none of them."""
    stop_at = time.monotonic() + PARAMS.late_share * incumbent.budget.left_s
    for seconds, start in left:
        if not incumbent.closed and time.monotonic() + seconds < stop_at:
            incumbent.offer(within(lambda: time.monotonic() > stop_at, partial(start, problem, surrogate)))


def _start_within_memory(
    problem: Problem, instance: Instance, incumbent: Incumbent, starts: list[tuple[float, Start]]
) -> Instance | None:
    """Where memory over time is short, every heuristic on a surrogate of its own; the surrogate of the best one.

    This is what each of them finds as a method by itself, so the default is behind none of them.
    """
    stop_at = time.monotonic() + PARAMS.memory_share * incumbent.budget.left_s
    best = None
    for _, start in starts if incumbent.refused or incumbent.best is None else ():
        if incumbent.budget.left_s and (incumbent.best is None or time.monotonic() < stop_at):
            found = first_admitted(problem, instance, partial(start, problem))
            if found is not None and incumbent.offer(found[0]):
                best = found[1]
    return best


def _offer_single_device(instance: Instance, incumbent: Incumbent) -> None:
    """All ops on the device that takes least time for them and has the memory: no plan should be worse."""
    devices = [d for d in range(instance.device_count) if all(d in devices for devices in instance.allowed)]
    for device in sorted(devices, key=lambda device: sum(row[device] for row in instance.duration)):
        alone = in_sequence(instance, [device] * instance.op_count, instance.order)
        if keeps_blocks_and_memory(instance, alone) and incumbent.offer(alone):
            return


def _contract(
    problem: Problem, instance: Instance, surrogate: Instance, incumbent: Incumbent
) -> tuple[Instance, Instance, Incumbent]:
    """Ops of no time contracted where that costs nothing: Inception's forward pass falls from 880 ops to 407."""
    found = reduction(instance) if problem.options.memory == "sum" else None
    if found is None or incumbent.best is None:
        return instance, surrogate, incumbent
    return found.reduced, found.reduced, Contracted(found, incumbent)


def _bound(instance: Instance, incumbent: Incumbent) -> Bounds:
    """Combinatorial bounds: they need no solver, and give all later models their time windows."""
    bounds = lower_bounds(instance, PARAMS.bound_share * incumbent.budget.left_s)
    incumbent.raise_bound(bounds.makespan)
    return bounds


def _solve_segments(instance: Instance, bounds: Bounds, incumbent: Incumbent) -> tuple[Bounds, SegmentChain | None]:
    """Segments between cut ops: each is small enough to prove, and their bounds add up, which CP-SAT does not see."""
    if incumbent.closed or not incumbent.budget.left_s:
        return bounds, None
    return solve_segments(instance, bounds, incumbent, PARAMS.segments)


def _reconcile_segments(chain: SegmentChain | None, bounds: Bounds, incumbent: Incumbent) -> None:
    """The master problem: series that share blocks may each want them on another device."""
    if chain is None or incumbent.closed:
        return
    last = chain.segments[-1].ops[-1]
    after = chain.instance.shortest[last] + bounds.tail[last]

    def offer(ticks: int, schedules: Iterable[Schedule]) -> int | None:
        incumbent.raise_bound(ticks + after)
        for schedule in schedules:
            incumbent.offer(schedule)
        return None if incumbent.closed or incumbent.best is None else incumbent.best.makespan - after - 1

    stop_at = time.monotonic() + PARAMS.master_share * incumbent.budget.left_s
    MasterProblem(chain).reach(search_series, offer, stop_at)


def _restart(surrogate: Instance, incumbent: Incumbent) -> None:
    """Randomized restarts: ops outside all segments, and graphs without any, have had list schedules only so far."""
    improve(surrogate, incumbent, PARAMS.restart_share * incumbent.budget.left_s, PARAMS.restarts)


def _anneal(surrogate: Instance, incumbent: Incumbent, share: float) -> None:
    """Moves of single ops with all transfers in their queues: windows know delays only, and those of idle links."""
    seconds = share * incumbent.budget.left_s
    if surrogate.traffic is not None and seconds > PARAMS.compile_s:
        from dlplacer.solvers.local_search.anneal import anneal_schedule

        anneal_schedule(surrogate, incumbent, seconds)


def _search_windows(instance: Instance, incumbent: Incumbent, share: float, patience: int) -> None:
    """Windows of the best schedule solved exactly: on 2,000 ops they cut a gap of 6.4 % to 1.6, CP-SAT alone to 6.3."""
    search_windows(instance, incumbent, share * incumbent.budget.left_s, patience)


def _solve_whole(instance: Instance, bounds: Bounds, incumbent: Incumbent, share: float) -> None:
    """The model without transfers and without memory over time: exact under the paper's options, else a bound."""
    best = incumbent.best
    if best is None or incumbent.closed or not incumbent.budget.left_s:
        return
    stop_at = time.monotonic() + share * incumbent.budget.left_s
    model, variables = build_model(instance, bounds, best.makespan, best)
    if not search(model, variables, instance, incumbent, stop_at - time.monotonic()):
        raise InternalError(
            f"CP-SAT finds no schedule of at most {best.makespan} ticks, where one is known; please report this graph "
            "and topology"
        )


def _solve_exactly(problem: Problem, instance: Instance, bounds: Bounds, incumbent: Incumbent) -> None:
    """The model with transfers and memory over time: the only phase that proves under every option."""
    if not solve_exactly(problem, instance, bounds, incumbent, PARAMS.whole_share * incumbent.budget.left_s):
        raise explain_overflow(problem)
