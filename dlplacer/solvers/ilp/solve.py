"""The default method: bounds, heuristics, improvement, and CP-SAT for what is left of the time."""

from dlplacer.errors import InternalError
from dlplacer.problem import Problem
from dlplacer.solvers.bounds import Bounds, lower_bounds
from dlplacer.solvers.construct import construct, construct_on_placement
from dlplacer.solvers.decompose import put_together, raised, solve_segments
from dlplacer.solvers.heft import heft
from dlplacer.solvers.ilp.constraints import charge_idle_ends
from dlplacer.solvers.ilp.model import build_model
from dlplacer.solvers.ilp.search import search
from dlplacer.solvers.improve import improve
from dlplacer.solvers.incumbent import Incumbent
from dlplacer.solvers.instance import Instance, build_instance
from dlplacer.solvers.list_schedule import list_schedule
from dlplacer.solvers.schedule import Budget, Outcome, Schedule
from dlplacer.solvers.single import best_single
from dlplacer.solvers.timetable import Timetable

_BOUND_SHARE = 0.15
_IMPROVE_SHARE = 0.1
_IMPROVE_ROUNDS = 150
_SEGMENT_SHARE = 0.6
_SEGMENT_ROUNDS = 30


def solve_ilp(problem: Problem, budget: Budget) -> Outcome:
    """The best schedule found within the budget, and a makespan that none can beat.

    A KeyboardInterrupt after the first plan sets `Budget.stop` and returns the best plan.

    Raises
    ------
    InfeasibleError
        If no plan can exist; names the constraint to blame.
    InternalError
        If a proven bound contradicts a schedule.
    """
    incumbent = Incumbent(budget)
    try:
        _solve(problem, build_instance(problem), incumbent)
    except KeyboardInterrupt:
        budget.stop.set()
        if incumbent.best is None:
            raise
    best = incumbent.best
    return Outcome(None if best is None else Schedule(problem, best.device, best.start), incumbent.bound)


def _solve(problem: Problem, instance: Instance, incumbent: Incumbent) -> None:
    budget = incumbent.budget
    for rule in (list_schedule, heft):
        incumbent.offer(construct(instance, rule))
    incumbent.offer(_single(problem))
    if incumbent.best is None:
        incumbent.offer(construct_on_placement(problem, instance, list_schedule, budget.left_s / 2))
    bounds = lower_bounds(instance, _BOUND_SHARE * budget.left_s)
    incumbent.raise_bound(bounds.makespan)
    if incumbent.best is None or incumbent.closed:
        return
    improve(instance, incumbent, _IMPROVE_SHARE * budget.left_s, _IMPROVE_ROUNDS)
    if not incumbent.closed and budget.left_s:
        bounds = _decompose(instance, bounds, incumbent)
    if not incumbent.closed and budget.left_s:
        _prove(instance, bounds, incumbent)


def _decompose(instance: Instance, bounds: Bounds, incumbent: Incumbent) -> Bounds:
    budget = incumbent.budget
    last = max(range(instance.op_count), key=lambda op: bounds.head[op] + instance.shortest[op])
    solved = solve_segments(instance, last, budget, _SEGMENT_SHARE * budget.left_s, _finish_segment)
    bounds = raised(instance, bounds, solved, _BOUND_SHARE * budget.left_s)
    incumbent.raise_bound(bounds.makespan)
    for timetable in put_together(instance, solved):
        incumbent.offer(timetable)
    return bounds


def _finish_segment(instance: Instance, bounds: Bounds, incumbent: Incumbent, between_cuts: bool) -> None:
    improve(instance, incumbent, _IMPROVE_SHARE * incumbent.budget.left_s, _SEGMENT_ROUNDS)
    best = incumbent.best
    if best is None or incumbent.closed or not incumbent.budget.left_s:
        return
    model, variables = build_model(instance, bounds, best.makespan, best)
    charge_idle_ends(model, instance, variables, bounds, 0 if between_cuts else None, instance.op_count - 1)
    search(model, variables, instance, incumbent, incumbent.budget.left_s)


def _prove(instance: Instance, bounds: Bounds, incumbent: Incumbent) -> None:
    best = incumbent.best
    if best is None:
        return
    model, variables = build_model(instance, bounds, best.makespan, best)
    if not search(model, variables, instance, incumbent, incumbent.budget.left_s):
        raise InternalError(
            f"CP-SAT finds no schedule of at most {best.makespan} ticks, where one is known; please report this graph "
            "and topology"
        )


def _single(problem: Problem) -> Timetable | None:
    schedule = best_single(problem)
    return None if schedule is None else Timetable(schedule.device, schedule.start, schedule.makespan)
