"""The default method as a whole: limits, interruptions, reports and reproducibility."""

import threading
from dataclasses import replace

import pytest
from benchmarks.families import FAMILIES
from solvers.helpers import make_machine, make_problem, one_worker
from solvers.random_problems import random_fork_join

from dlplacer.core.errors import InternalError
from dlplacer.problem.problem import Problem
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.methods import METHODS


def _hard() -> Problem:
    return make_problem(FAMILIES["inception_like"](200, 1), make_machine(2, rate=12e9, latency_s=8e-6))


@pytest.mark.parametrize("after_s", [0.05, 0.7])
def test_stop_ends_the_search_with_the_best_plan(after_s: float) -> None:
    budget = one_worker(600.0)
    timer = threading.Timer(after_s, budget.stop.set)
    timer.start()
    outcome = METHODS["ilp"](_hard(), budget)
    timer.join()
    assert outcome.schedule is not None


def test_reports_only_improve() -> None:
    seen: list[tuple[int | None, int]] = []
    budget = replace(one_worker(1.5), report=lambda makespan, bound: seen.append((makespan, bound)))
    outcome = METHODS["ilp"](_hard(), budget)
    makespans = [makespan for makespan, _ in seen if makespan is not None]
    assert makespans == sorted(makespans, reverse=True)
    assert [bound for _, bound in seen] == sorted(bound for _, bound in seen)
    assert outcome.schedule
    assert seen[-1] == (outcome.schedule.makespan, outcome.lower_bound)


def test_the_search_ends_at_the_gap_that_is_asked_for() -> None:
    outcome = METHODS["ilp"](_hard(), one_worker(600.0, gap=0.5))
    assert outcome.schedule is not None
    assert outcome.schedule.makespan - outcome.lower_bound <= 0.5 * outcome.schedule.makespan


def test_one_worker_gives_the_same_plan_again() -> None:
    for seed in range(5):
        problem = make_problem(*random_fork_join(seed, 4, plain=False))
        if not build_instance(problem).memory_binds:
            assert METHODS["ilp"](problem, one_worker()).schedule == METHODS["ilp"](problem, one_worker()).schedule


def test_a_bound_above_a_schedule_is_an_internal_error() -> None:
    incumbent = Incumbent(one_worker())
    incumbent.offer(Schedule((0,), (0,), 5))
    with pytest.raises(InternalError, match="lower bound of 6 ticks is above the makespan of 5 ticks"):
        incumbent.raise_bound(6)
