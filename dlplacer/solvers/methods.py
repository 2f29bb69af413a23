"""The methods by name. Every outcome carries a lower bound, so every method reports a gap."""

from collections.abc import Callable

from dlplacer.problem import Problem
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.construct import Rule, construct, construct_on_placement
from dlplacer.solvers.heft import heft
from dlplacer.solvers.instance import build_instance
from dlplacer.solvers.list_schedule import list_schedule
from dlplacer.solvers.schedule import Budget, Outcome, Schedule
from dlplacer.solvers.single import best_single

_BOUND_SHARE = 0.2


def _ilp(problem: Problem, budget: Budget) -> Outcome:
    from dlplacer.solvers.ilp.solve import solve_ilp

    return solve_ilp(problem, budget)


def _list(problem: Problem, budget: Budget) -> Outcome:
    return _heuristic(problem, budget, list_schedule)


def _heft(problem: Problem, budget: Budget) -> Outcome:
    return _heuristic(problem, budget, heft)


def _single(problem: Problem, budget: Budget) -> Outcome:
    bounds = lower_bounds(build_instance(problem), _BOUND_SHARE * budget.left_s)
    return Outcome(best_single(problem), bounds.makespan)


def _heuristic(problem: Problem, budget: Budget, rule: Rule) -> Outcome:
    instance = build_instance(problem)
    found = construct(instance, rule) or construct_on_placement(problem, instance, rule, budget.left_s / 2)
    bounds = lower_bounds(instance, _BOUND_SHARE * budget.left_s)
    budget.report(None if found is None else found.makespan, bounds.makespan)
    schedule = None if found is None else Schedule(problem, found.device, found.start)
    return Outcome(schedule, bounds.makespan)


METHODS: dict[str, Callable[[Problem, Budget], Outcome]] = {
    "ilp": _ilp,
    "list": _list,
    "heft": _heft,
    "single": _single,
}
"""Method → solver; the first is the default."""
