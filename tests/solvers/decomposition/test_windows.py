"""Windows of a schedule: what their solutions promise is what the whole becomes."""

from random import Random

import pytest
from ortools.sat.python import cp_model
from solvers.helpers import broken_rules, make_problem, no_bounds, one_worker
from solvers.random_problems import random_fork_join, random_problem

from dlplacer.solvers.decomposition.windows import Window, WindowSequence, build_window_model, replaced, search_windows
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, new_solver, read_schedule, search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.schedule import Schedule


def _solved(window: Window, upper: int) -> tuple[Schedule | None, int]:
    model, variables = build_window_model(window, upper)
    solver = new_solver(1, 0, 60.0)
    if solver.solve(model) != cp_model.OPTIMAL:
        return None, 0
    found = read_schedule(variables, window.instance, solver.boolean_value, solver.value)
    return found, round(solver.objective_value)


def _instances(first: int, last: int) -> list[tuple[int, Instance, Schedule]]:
    found = []
    for seed in range(first, last):
        make = random_problem if seed % 2 else lambda seed: random_fork_join(seed, 3, plain=False)
        instance = build_instance(make_problem(*make(seed)))
        if all(instance.allowed) and len(set(instance.component)) == 1:
            schedule = construct(instance, list_schedule)
            if schedule is not None:
                found.append((seed, instance, schedule))
    return found


def test_a_window_over_everything_is_the_problem() -> None:
    for seed, instance, schedule in _instances(0, 60):
        timeline = WindowSequence(instance, schedule)
        window = timeline.window(timeline.first, len(timeline.ops) - timeline.first)
        found, value = _solved(window, schedule.makespan)
        assert found is not None, seed
        incumbent = Incumbent(one_worker())
        model, variables = build_model(instance, no_bounds(instance), schedule.makespan)
        assert search(model, variables, instance, incumbent, 60.0) is SearchEnd.OPTIMAL, seed
        # Sources that nothing reads stay where they are, which only memory can make felt.
        assert value == incumbent.bound or instance.memory_binds, seed


@pytest.mark.parametrize("first", range(100, 400, 100))
def test_the_whole_becomes_what_the_window_promises(first: int) -> None:
    random = Random(first)
    for seed, instance, schedule in _instances(first, first + 100):
        timeline = WindowSequence(instance, schedule)
        if timeline.first == len(timeline.ops):
            continue
        place = random.randint(timeline.first, len(timeline.ops) - 1)
        window = timeline.window(place, random.randint(1, 5))
        assert window.bounds.makespan <= schedule.makespan, seed
        found, value = _solved(window, schedule.makespan)
        assert found is not None, seed
        changed, ops = replaced(timeline, schedule, timeline.ops, window, found)
        assert sorted(ops) == list(range(instance.op_count)), seed
        assert not broken_rules(instance, changed), seed
        assert changed.makespan <= value <= schedule.makespan, seed


@pytest.mark.parametrize("workers", [1, 3])
def test_repair_keeps_the_rules_and_never_worsens(workers: int) -> None:
    for seed, instance, schedule in _instances(500, 540):
        incumbent = Incumbent(one_worker())
        object.__setattr__(incumbent.budget, "workers", workers)
        incumbent.offer(schedule)
        search_windows(instance, incumbent, 0.3, 12)
        assert incumbent.best is not None
        assert incumbent.best.makespan <= schedule.makespan, seed
        assert not broken_rules(instance, incumbent.best), seed
