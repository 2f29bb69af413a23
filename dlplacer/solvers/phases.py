"""The default method: the heuristics' schedules, then phases over one incumbent, each with a share of the time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds import Bounds, critical_path, lower_bounds, whole_area
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.decomposition.series import solve_sections
from dlplacer.solvers.decomposition.stage_bound import MOST_STAGED
from dlplacer.solvers.decomposition.stage_search import search_stages
from dlplacer.solvers.feasibility import EXACT_UP_TO, explain_overflow
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.heuristics.single_device import best_single
from dlplacer.solvers.ilp.assignment_model import AssignmentModel
from dlplacer.solvers.ilp.constraints import Literal
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, no_schedule_error
from dlplacer.solvers.ilp.cp_sat_search import search as search_model
from dlplacer.solvers.ilp.ilp_model import solve_exactly
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.placement_loads import path_length, serial_path
from dlplacer.solvers.instance.schedule import Begin, Budget, Incumbent, Outcome, ProblemSchedule, Schedule
from dlplacer.solvers.instance.time_limit import within
from dlplacer.solvers.local_search.anneal import anneal_schedule
from dlplacer.solvers.local_search.compile_ahead import compiled_in_time
from dlplacer.solvers.starts import Start, StartSearch

_COMPILED_FROM = 16_000
"""Ops × devices above which heuristics in Python take as long as the compilation of their code."""

_RESTARTS = 150
"""Most randomized restarts in a row."""


@dataclass
class PhaseContext:
    """The state that phases share; `bounds` are set by the phase of that name."""

    problem: Problem
    instance: Instance
    incumbent: Incumbent
    heuristics: StartSearch
    bounds: Bounds = field(init=False)

    @property
    def is_over(self) -> bool:
        """True if no time is left."""
        return not self.incumbent.budget.left_s


@dataclass(frozen=True)
class Phase:
    """A phase of the default method: `run` improves the incumbent in about the given seconds.

    These seconds are a `share` of the time left. A cheap phase runs even if the requested gap is reached, because it
    may close the rest of the gap. A needed phase cannot be left out, because later phases depend on it.
    """

    name: str
    run: Callable[[PhaseContext, float], None]
    share: float = 1.0
    applies: Callable[[PhaseContext], bool] = lambda search: True
    is_cheap: bool = False
    is_needed: bool = False


def solve_ilp(problem: Problem, budget: Budget, starts: Iterable[Start], begin: Begin) -> Outcome:
    """The best schedule found within the budget, and a makespan that no schedule can beat.

    The warm start `begin` runs first, on an empty incumbent. Then the heuristics run for a share of the time
    (`StartSearch`), so the result is no worse than the schedules of the heuristics that finish.

    Raises InfeasibleError if no plan can exist, naming the violated constraint, and InternalError if a proven bound
    contradicts a schedule.
    """
    instance = build_instance(problem)
    incumbent = Incumbent(budget, admission(problem, instance))
    begin(instance, incumbent)
    if not incumbent.closed:
        heuristics = StartSearch(problem, instance, incumbent, list(starts))
        search = PhaseContext(problem, instance, incumbent, heuristics)
        within(lambda: incumbent.best is not None and search.is_over, partial(_run, search))
    best = incumbent.best
    return Outcome(None if best is None else ProblemSchedule.of(problem, instance, best), incumbent.bound)


def _run(search: PhaseContext) -> None:
    instance, incumbent = search.instance, search.incumbent
    incumbent.raise_bound(max(critical_path(instance), whole_area(instance)))
    alone = best_single(search.problem)
    if alone is not None:
        incumbent.offer(in_sequence(instance, [alone.device[0]] * instance.op_count, instance.order))
    first = incumbent.budget.for_first
    if instance.op_count * instance.device_count > _COMPILED_FROM and instance.device_count > 1:
        compiled_in_time(first.left_s, lambda: not first.left_s)
    search.heuristics.run()
    if incumbent.best is not None and incumbent.best.makespan == incumbent.bound:
        return
    for phase in PHASES:
        if (incumbent.closed and not phase.is_cheap) or search.is_over:
            return
        if phase.name not in incumbent.budget.without and phase.applies(search):
            phase.run(search, phase.share * incumbent.budget.left_s)


def _bound(search: PhaseContext, seconds: float) -> None:
    """Raise the bound without a solver; heads and tails give all later models their time windows."""
    search.bounds = lower_bounds(search.instance, seconds)
    search.incumbent.raise_bound(search.bounds.makespan)


def _search_stages(search: PhaseContext, seconds: float) -> None:
    surrogate = search.heuristics.surrogate
    search_stages(search.problem, search.bounds, search.incumbent, surrogate, search.instance, seconds)


def _assign_serial(search: PhaseContext, seconds: float) -> None:
    """If one path contains all working ops, solve a model of placements alone, whose bound holds for all schedules."""
    instance, path, best = search.instance, serial_path(search.instance), search.incumbent.best
    if not path or best is None:
        return
    model = AssignmentModel(search.problem, instance, path_length(instance, path), 0, best.makespan)
    model.hint([best.device[ops[0]] for ops in instance.members], best.makespan)

    def read(is_true: Callable[[Literal], bool], _value: object) -> list[Schedule]:
        place = model.read(is_true)
        return [in_sequence(instance, [place[block] for block in instance.block], instance.order)]

    if search_model(model.model, read, search.incumbent, seconds, relaxes_well=True) is SearchEnd.INFEASIBLE:
        raise no_schedule_error(best)


def _solve_sections(search: PhaseContext, seconds: float) -> None:
    """Solve the sections between cut ops one by one, because CP-SAT does not add up their bounds itself."""
    search.bounds = solve_sections(search.instance, search.bounds, search.incumbent)


def _restart(search: PhaseContext, seconds: float) -> None:
    """Restart list scheduling at random, mainly for ops outside all sections."""
    improve(search.heuristics.surrogate, search.incumbent, seconds, _RESTARTS)


def _solve_exactly(search: PhaseContext, seconds: float) -> None:
    """Solve the model of all rules. No other phase can prove an optimum under every option."""
    if not solve_exactly(search.problem, search.instance, search.bounds, search.incumbent, seconds):
        raise explain_overflow(search.problem)


def _anneal(search: PhaseContext, seconds: float) -> None:
    """Anneal and restart in turn, with new seeds, until the time is up."""
    incumbent, surrogate = search.incumbent, search.heuristics.surrogate
    is_compiled = compiled_in_time(seconds, lambda: search.is_over)
    while not incumbent.closed and not search.is_over:
        turn_s = max(1.0, incumbent.budget.left_s / 4)
        _restart(search, turn_s / 2)
        if is_compiled:
            anneal_schedule(surrogate, incumbent, turn_s)
        incumbent.budget = replace(incumbent.budget, seed=incumbent.budget.seed + 1)


PHASES = (
    Phase("bounds", _bound, 0.1, is_cheap=True, is_needed=True),
    Phase("stages", _search_stages, 0.25, lambda s: s.instance.memory_binds and s.instance.op_count <= MOST_STAGED),
    Phase("serial model", _assign_serial, 0.5, lambda s: s.instance.memory_binds),
    Phase("sections", _solve_sections),
    Phase("late heuristics", lambda s, seconds: s.heuristics.go_on()),
    Phase("restarts", _restart, 0.1),
    Phase("exact model", _solve_exactly, 0.8, lambda s: s.instance.working_count <= EXACT_UP_TO),
    Phase("annealing", _anneal, 1.0, lambda s: s.incumbent.best is not None),
)
"""The phases of the default method after its first schedules, in order. Shares are guesses."""
