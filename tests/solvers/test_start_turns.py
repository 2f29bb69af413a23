"""Whose turn it is among the heuristics: without a plan, behind the limit, and where one has to load a library."""

import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import star
from solvers.helpers import make_machine, one_worker

import dlplacer as dp
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers import starts as starts_module
from dlplacer.solvers.feasibility import room_search
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.schedule import Schedule, in_sequence
from dlplacer.solvers.starts import StartSearch


def _begun(problem: Problem, seconds: float = 1e6) -> tuple[Instance, Incumbent]:
    instance = build_instance(problem)
    return instance, Incumbent(one_worker(seconds), admission(problem, instance))


def _too_large_on_one() -> Problem:
    """Six ops in a row that one device holds on no surrogate, and two do."""
    ops = tuple(dp.Op(name, "t", 1.0, weight_bytes=4, output_bytes=8) for name in "abcdef")
    graph = dp.OpGraph(ops, tuple(dp.Edge(a, b, 8) for a, b in pairwise("abcdef")))
    return build_problem(graph, make_machine(2, memory=39), dp.Options())


def test_without_a_plan_a_quick_heuristic_has_several_turns_before_a_slow_one_has_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starts_module, "PARAMS", replace(starts_module.PARAMS, timed_from=0))
    problem = _too_large_on_one()
    instance, incumbent = _begun(problem)
    asked: list[str] = []

    def start(name: str, problem: Problem, surrogate: Instance) -> Schedule | None:
        asked.append(name)
        time.sleep({"first": 0.02, "quick": 0.0, "slow": 0.1}[name])
        # The quick one's fourth schedule is a plan.
        devices = [0, 0, 0, 1, 1, 1] if asked.count("quick") == 4 else [0] * 6
        return in_sequence(instance, devices, instance.order)

    starts = [
        StartMethod(cost, partial(start, name)) for name, cost in (("first", 1.0), ("slow", 20.0), ("quick", 0.1))
    ]
    StartSearch(problem, instance, incumbent, starts).run()
    assert incumbent.best is not None
    assert asked.index("slow") > [place for place, name in enumerate(asked) if name == "quick"][3]


def test_heuristics_do_not_begin_after_the_time_where_a_plan_is_known() -> None:
    problem = _too_large_on_one()
    instance, incumbent = _begun(problem, 0.0)
    incumbent.budget = replace(incumbent.budget, grace_s=0.3)
    asked: list[str] = []

    def start(name: str, problem: Problem, surrogate: Instance) -> Schedule | None:
        asked.append(name)
        devices = [0, 0, 0, 1, 1, 1] if len(asked) > 1 else [0] * 6
        return in_sequence(instance, devices, instance.order)

    # The first schedule is none, the second one is late and a plan.
    StartSearch(problem, instance, incumbent, [StartMethod(1.0, partial(start, name)) for name in "xyz"]).run()
    assert incumbent.best is not None
    assert len(asked) == 2


def test_one_that_loads_a_library_waits_for_those_that_do_not() -> None:
    problem = build_problem(FAMILIES["layered"](30, 1, 1.0), star(3), dp.Options())
    instance, incumbent = _begun(problem, 60.0)
    asked: list[int] = []

    def start(number: int, problem: Problem, instance: Instance) -> Schedule | None:
        asked.append(number)
        return in_sequence(instance, [number % 3] * instance.op_count, instance.order)

    costs = [1.0, 1.0, 0.1, 1.0, 1.0]
    starts = [StartMethod(cost, partial(start, n), loads_s=0.5 * (n == 2)) for n, cost in enumerate(costs)]
    StartSearch(problem, instance, incumbent, starts).run()
    assert asked == [0, 1, 3, 4, 2]


@pytest.mark.parametrize(("op_count", "most_s"), [(20, 2.0), (60, 300.0)])
def test_the_search_for_any_plan_of_few_ops_leaves_time_for_a_proof_that_there_is_none(
    op_count: int, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = build_problem(FAMILIES["layered"](op_count, 1, 1.0), star(3), dp.Options())
    instance, incumbent = _begun(problem, 600.0)
    given: list[float] = []
    monkeypatch.setattr(
        room_search, "search_room", lambda problem, instance, placement, seconds, seed: given.append(seconds)
    )
    search = StartSearch(problem, instance, incumbent, [StartMethod(1.0, lambda problem, instance: None)])
    search.run()
    assert given == [pytest.approx(most_s, rel=0.02)]
    search.go_on()
    assert given[1:] == [pytest.approx(600.0, rel=0.02)]
