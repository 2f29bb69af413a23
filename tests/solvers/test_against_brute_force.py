"""Every method against an oracle that enumerates all placements, orders and routes of tiny problems."""

import pytest
from solvers.brute_force import optimal_makespan
from solvers.helpers import broken_rules, make_problem, no_bounds, one_worker, outcome_by_work
from solvers.random_problems import random_problem

from dlplacer.check import violations
from dlplacer.core.errors import InfeasibleError
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem
from dlplacer.solvers.feasibility import explain_infeasible, require_feasible
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, reader, search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Incumbent, Outcome

_CHUNK = 100


def _optimum(problem: Problem) -> int | None:
    makespan = optimal_makespan(problem.graph, problem.topology)
    ticks = None if makespan is None else makespan / problem.tick_s
    assert ticks is None or ticks.denominator == 1
    return None if ticks is None else int(ticks)


def _run(problem: Problem) -> Outcome | None:
    try:
        require_feasible(problem)
        return outcome_by_work(problem)
    except InfeasibleError:
        return None


@pytest.mark.parametrize("chunk", [*range(2), *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(2, 10))])
def test_ilp_finds_and_proves_the_optimum(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        problem = make_problem(*random_problem(seed))
        optimum, outcome = _optimum(problem), _run(problem)
        assert (optimum is None) == (outcome is None), seed
        if outcome is None:
            continue
        assert outcome.schedule is not None, seed
        assert (outcome.schedule.makespan, outcome.lower_bound) == (optimum, optimum), seed
        plan = assemble(problem, outcome, outcome.schedule, "ilp", 0.0, {})
        assert not violations(plan), seed
        assert plan.status == "optimal", seed


@pytest.mark.parametrize("chunk", range(2))
def test_model_alone_has_the_same_optimum(chunk: int) -> None:
    """Without bounds, hints and heuristics, CP-SAT answers from the rules alone."""
    for seed in range(1000 + chunk * _CHUNK, 1000 + (chunk + 1) * _CHUNK):
        problem = make_problem(*random_problem(seed))
        optimum, instance, incumbent = _optimum(problem), build_instance(problem), Incumbent(one_worker())
        if not all(instance.allowed):
            assert optimum is None, seed
            continue
        model, variables = build_model(instance, no_bounds(instance), problem.horizon)
        end = search(model, reader(variables, instance), incumbent, 60.0)
        assert end is (SearchEnd.INFEASIBLE if optimum is None else SearchEnd.OPTIMAL), seed
        if incumbent.best is not None:
            assert (incumbent.best.makespan, incumbent.bound) == (optimum, optimum), seed
            assert not broken_rules(instance, incumbent.best), seed
        elif end is SearchEnd.INFEASIBLE:
            assert isinstance(explain_infeasible(problem), InfeasibleError)
