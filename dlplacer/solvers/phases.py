"""The phases of the default method after its first schedules: bounds, segments, annealing, the exact model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from dlplacer.core.errors import InternalError
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds import Bounds, lower_bounds
from dlplacer.solvers.decode.machine_code import is_kept
from dlplacer.solvers.decomposition.segment_search import (
    SegmentParams,
    segments_of,
    solve_segments,
    work_outside,
)
from dlplacer.solvers.decomposition.segments import GraphSegment
from dlplacer.solvers.decomposition.stage_bound import search_stages
from dlplacer.solvers.feasibility import EXACT_UP_TO, explain_overflow
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd
from dlplacer.solvers.ilp.cp_sat_search import search as search_model
from dlplacer.solvers.ilp.ilp_model import build_model, solve_exactly
from dlplacer.solvers.ilp.placement_models import build_serial_model, serial_path
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.instance.time_limit import now
from dlplacer.solvers.local_search.compile_ahead import ANNEALING_CODE, compile_in_thread, seconds_to_begin
from dlplacer.solvers.local_search.placement_annealing import PLACEMENT_CODE


@dataclass(frozen=True)
class PhaseParams:
    """The default method's shares of time.

    Shares are of the time that is left when a phase begins. Segments and parts divide theirs themselves.

    Attributes
    ----------
    bound_share, stage_share, restart_share, anneal_share, serial_share, exact_share
        For the phases of these names.
    segments, sparse_segments
        What is spent on segments, and where they are sparse.
    sparse_from, sparse_from_ops
        Work outside all segments, and ops, from which these are sparse: then they bring a bound, but hardly plans.
    restarts
        Randomized restarts in a row.
    anneal_ahead_share, anneal_ahead_up_to
        For annealing ahead of sparse segments, and ops up to which it brings something in half a minute.
    serial_compile_s
        Seconds from which annealing placements is worth the compilation of its code.
    exact_up_to
        Working ops up to which the exact model is solved.
    """

    bound_share: float = 0.1
    stage_share: float = 0.25
    segments: SegmentParams = field(default_factory=SegmentParams)
    sparse_segments: SegmentParams = field(default_factory=lambda: SegmentParams(transfer_share=0.3, joins=False))
    sparse_from: float = 0.05
    sparse_from_ops: int = 2000
    restart_share: float = 0.1
    restarts: int = 150
    anneal_share: float = 0.5
    anneal_ahead_share: float = 0.4
    anneal_ahead_up_to: int = 20_000
    serial_share: float = 0.4
    serial_compile_s: float = 5.0
    exact_up_to: int = EXACT_UP_TO
    exact_share: float = 0.8


PARAMS = PhaseParams()


@dataclass
class PhaseContext:
    """The state that phases share.

    Attributes
    ----------
    surrogate
        The instance that led to the best schedule.
    later
        Searches what is not in this table: heuristics without time so far, parts of the machine.
    is_part
        True for a restricted problem, whose plans count and whose bounds do not.
    bounds, segments, sparse
        Set by the phases of these names; `sparse` segments leave out so much work that they bring hardly any plans.
    """

    problem: Problem
    instance: Instance
    surrogate: Instance
    incumbent: Incumbent
    later: Callable[[], None] = lambda: None
    is_part: bool = False
    bounds: Bounds = field(init=False)
    segments: list[GraphSegment] = field(default_factory=list)
    sparse: bool = False

    @property
    def few(self) -> bool:
        """True if exact models of the whole are worth their time."""
        return self.instance.working_count <= PARAMS.exact_up_to

    @property
    def contended(self) -> bool:
        """True if transfers wait for each other."""
        return self.surrogate.traffic is not None


@dataclass(frozen=True)
class Phase:
    """A step of the default method.

    Attributes
    ----------
    name
        To leave it out by; several rows may share one.
    run
        Improves the search's incumbent for about so many seconds.
    share
        Of the time that is left when the phase begins.
    applies
        False where it has nothing to do.
    is_cheap
        True if it runs although the gap that was asked for is reached: it may prove the rest.
    is_needed
        True if later phases rest on it, so that it cannot be left out.
    """

    name: str
    run: Callable[[PhaseContext, float], None]
    share: float = 1.0
    applies: Callable[[PhaseContext], bool] = lambda search: True
    is_cheap: bool = False
    is_needed: bool = False


def run_phases(search: PhaseContext, phases: Iterable[Phase]) -> None:
    """Run the phases in order until the gap is closed or the time is up, but for those that the budget leaves out."""
    for phase in phases:
        budget = search.incumbent.budget
        if (search.incumbent.closed and not phase.is_cheap) or not budget.left_s:
            return
        if phase.name not in budget.without and phase.applies(search):
            phase.run(search, phase.share * budget.left_s)


def _bound(search: PhaseContext, seconds: float) -> None:
    """Raise the bound without a solver; heads and tails give all later models their time windows."""
    search.bounds = lower_bounds(search.instance, seconds)
    search.incumbent.raise_bound(search.bounds.makespan)


def _stage_bound(search: PhaseContext, seconds: float) -> None:
    search_stages(search.problem, search.instance, search.bounds, search.incumbent, seconds)


def _assign_serial(search: PhaseContext, seconds: float) -> None:
    """Where memory is short and ops run one after another the assignment is all that is left to decide."""
    path = serial_path(search.instance)
    if not path:
        return
    if len(path) <= PARAMS.exact_up_to:
        _assign(search, path, seconds)
    worth = not search.incumbent.closed and (is_kept(PLACEMENT_CODE) or seconds > PARAMS.serial_compile_s)
    if worth and compile_in_thread(PLACEMENT_CODE, lambda: not search.incumbent.budget.left_s):
        from dlplacer.solvers.local_search.serial_annealing import anneal_serial

        anneal_serial(search.instance, search.incumbent, path, seconds)
    if len(path) > PARAMS.exact_up_to:
        _assign(search, path, PARAMS.serial_share * search.incumbent.budget.left_s)


def _assign(search: PhaseContext, path: list[int], seconds: float) -> None:
    """Solve the model of placements alone, whose optimum no schedule beats."""
    best = search.incumbent.best
    if best is not None and not search.incumbent.closed:
        model, variables = build_serial_model(search.problem, search.instance, path, best)
        end = search_model(model, variables, search.instance, search.incumbent, seconds, relaxes_well=True)
        _require_known(end, best)


def _find_segments(search: PhaseContext, seconds: float) -> None:
    """Find the ops between cut ops, and whether that leaves so much out that it brings hardly any plans."""
    search.segments = segments_of(search.instance, search.bounds, seconds, PARAMS.segments)
    is_large = search.instance.traffic is not None and search.instance.op_count > PARAMS.sparse_from_ops
    search.sparse = is_large and work_outside(search.instance, search.segments) > PARAMS.sparse_from


def _solve_segments(search: PhaseContext, seconds: float) -> None:
    """Prove segments between cut ops: their bounds add up, which CP-SAT does not see."""
    params = PARAMS.sparse_segments if search.sparse else PARAMS.segments
    search.bounds = solve_segments(search.instance, search.segments, search.bounds, search.incumbent, params)


def _anneal(search: PhaseContext, seconds: float) -> None:
    """Move single ops with all transfers in their queues."""
    asked = now()
    if seconds > seconds_to_begin() and compile_in_thread(ANNEALING_CODE, lambda: not search.incumbent.budget.left_s):
        from dlplacer.solvers.local_search.anneal import anneal_schedule

        anneal_schedule(search.surrogate, search.incumbent, seconds - (now() - asked))


def _is_ahead(search: PhaseContext) -> bool:
    """True where segments will hardly bring plans: memory over time is short, or they are sparse."""
    short = search.incumbent.refused and not search.few
    is_soon = search.sparse and search.instance.op_count <= PARAMS.anneal_ahead_up_to
    return search.contended and is_kept(ANNEALING_CODE) and (short or is_soon)


def _restart(search: PhaseContext, seconds: float) -> None:
    """Restart list scheduling at random: ops outside all segments have had list schedules only so far."""
    improve(search.surrogate, search.incumbent, seconds, PARAMS.restarts)


def _require_known(end: SearchEnd, best: Schedule) -> None:
    if end is SearchEnd.INFEASIBLE:
        raise InternalError(
            f"CP-SAT finds no schedule of at most {best.makespan} ticks, where one is known; please report this graph "
            "and topology"
        )


def _solve_whole(search: PhaseContext, seconds: float) -> None:
    """Solve the model without the traffic of links: a bound, and placements that the exact model is slow to find."""
    best = search.incumbent.best
    if best is not None:
        stop_at = now() + seconds
        model, variables = build_model(search.instance, search.bounds, best.makespan, best)
        end = search_model(model, variables, search.instance, search.incumbent, stop_at - now())
        _require_known(end, best)


def _solve_exactly(search: PhaseContext, seconds: float) -> None:
    """Solve the model of all rules: the only phase that proves under every option."""
    if not solve_exactly(search.problem, search.instance, search.bounds, search.incumbent, seconds):
        raise explain_overflow(search.problem)


def _again(search: PhaseContext, seconds: float) -> None:
    """Restarts and annealing, drawn anew, for as long as there is time: only a proof ends a search early."""
    incumbent = search.incumbent
    while incumbent.best is not None and not incumbent.closed and incumbent.budget.left_s:
        incumbent.budget = replace(incumbent.budget, seed=incumbent.budget.seed + 1)
        _restart(search, PARAMS.restart_share * incumbent.budget.left_s)
        if _many_contended(search):
            _anneal(search, incumbent.budget.left_s)


def _many(search: PhaseContext) -> bool:
    return not search.few


def _many_contended(search: PhaseContext) -> bool:
    return search.contended and not search.few


PHASES = (
    Phase("bounds", _bound, PARAMS.bound_share, is_cheap=True, is_needed=True),
    Phase("stage bound", _stage_bound, PARAMS.stage_share),
    Phase(
        "serial model",
        _assign_serial,
        PARAMS.serial_share,
        lambda s: s.incumbent.best is not None and s.instance.memory_binds,
    ),
    Phase("find segments", _find_segments, is_needed=True),
    Phase("annealing", _anneal, PARAMS.anneal_ahead_share, _is_ahead),
    Phase("segments", _solve_segments, applies=lambda s: not (s.sparse and s.is_part)),
    Phase("annealing", _anneal, PARAMS.anneal_share, _many_contended),
    Phase("parts", lambda s, seconds: s.later(), applies=_many),
    Phase("restarts", _restart, PARAMS.restart_share),
    Phase("whole model", _solve_whole, PARAMS.exact_share, lambda s: s.few and s.instance.traffic is not None),
    Phase("exact model", _solve_exactly, PARAMS.exact_share, lambda s: s.few),
    Phase("parts", lambda s, seconds: s.later(), applies=lambda s: s.few),
    Phase("annealing", _anneal, applies=_many_contended),
    Phase("again", _again, applies=lambda s: not s.is_part),
)
"""The default method after its first schedules."""
