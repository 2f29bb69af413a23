"""Heuristics in machine code one by one: on surrogates, and on what is placed, they do what those in Python do."""

from dataclasses import replace
from functools import cache

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import limited, linked, mixed, star
from solvers.helpers import broken_rules, broken_transfers

from dlplacer.core.options import Options
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission, best_admitted, surrogates
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.local_search.greedy_rules import HEURISTICS
from dlplacer.solvers.local_search.greedy_schedules import CompiledHeuristics
from dlplacer.solvers.methods import RULES, start_named

MACHINES = {"star": lambda: star(4), "unequal": lambda: mixed(linked(3), "fast", "slow")}


@cache
def _short(machine: str, family: str = "layered", slack: float = 1.05, op_count: int = 60) -> Problem:
    """Weights take most of the memory, and what is alive for a while does not fit beside them everywhere."""
    drawn = FAMILIES[family](op_count, 0, 1.0)
    made = MACHINES[machine]()
    ops = tuple(
        replace(
            op,
            time_s={name: (op.time_on("fast") or 0.0) * (1 + at) for at, name in enumerate(made.device_types)},
            weight_bytes=[0, 1, 4, 16][number % 4] * 2**20,
        )
        for number, op in enumerate(drawn.ops)
    )
    graph = replace(drawn, ops=ops)
    return build_problem(graph, limited(made, graph, slack), Options())


def _compiled(problem: Problem, names: tuple[str, ...] = tuple(HEURISTICS)) -> dict[str, StartMethod]:
    made = CompiledHeuristics.of(build_instance(problem))
    assert made is not None
    starts = [StartMethod(1.0, lambda problem, instance: None, name) for name in names]
    return {str(start.in_machine_code): start for start in made.instead_of(starts, 2)}


def _keeps_rules(instance: Instance, schedule: Schedule) -> bool:
    return not broken_rules(instance, schedule) and not broken_transfers(instance, schedule)


@pytest.mark.parametrize("name", HEURISTICS)
@pytest.mark.parametrize("machine", MACHINES)
def test_on_every_surrogate_they_find_what_those_in_python_find(machine: str, name: str) -> None:
    problem = _short(machine)
    compiled, found = _compiled(problem)[name], 0
    for surrogate in (build_instance(problem), *surrogates(problem)):
        known = construct(surrogate, RULES[name])
        made = compiled.find(problem, surrogate)
        assert (made is None) == (known is None)
        if made is not None and known is not None:
            found += 1
            assert _keeps_rules(surrogate, made)
            # Measured: 1.7 % at most, where those in Python make their transfers anew and keep the shorter schedule.
            assert made.makespan <= 1.02 * known.makespan
    assert found > 1


@pytest.mark.parametrize("name", HEURISTICS)
def test_they_find_plans_where_memory_over_time_is_short(name: str) -> None:
    problem = _short("star")
    instance = build_instance(problem)
    compiled = _compiled(problem)[name]
    first = compiled.find(problem, instance)
    admitted = best_admitted(problem, instance, lambda surrogate: compiled.find(problem, surrogate))
    known = best_admitted(problem, instance, lambda surrogate: start_named(name, problem, surrogate))
    assert first is not None
    assert not admission(problem, instance)(first), "memory is short"
    assert (admitted is None) == (known is None)
    if admitted is not None:
        assert admission(problem, instance)(admitted[0])
        assert _keeps_rules(instance, admitted[0])
