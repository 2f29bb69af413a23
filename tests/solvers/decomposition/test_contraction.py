"""The reduced instance has the optimum of the original, and the way back keeps every rule."""

from dataclasses import replace
from random import Random

import pytest
from solvers.helpers import broken_rules, make_graph, make_instance, make_machine, no_bounds, one_worker
from solvers.random_problems import random_problem

from dlplacer.core.graph import OpGraph
from dlplacer.solvers.decomposition.contraction import Reduction, reduction
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.ilp.cp_sat_search import search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def _reduced(instance: Instance) -> Reduction:
    found = reduction(instance)
    assert found is not None
    return found


def _best(instance: Instance) -> Schedule | None:
    """An optimal schedule by the whole model; None if there is none."""
    incumbent = Incumbent(one_worker())
    horizon = sum(instance.longest) + sum(
        max((ticks for row in delay for ticks in row if ticks < 2**30), default=0)
        for arcs in instance.successors
        for _, delay in arcs
    )
    model, variables = build_model(instance, no_bounds(instance), horizon)
    search(model, variables, instance, incumbent, 60.0)
    return incumbent.best


def _with_views(seed: int) -> tuple[OpGraph, object]:
    """A random problem in which many ops take no time."""
    graph, topology = random_problem(seed)
    random = Random(seed)
    ops = tuple(replace(op, time_s=0) if random.random() < 0.5 else op for op in graph.ops)
    return OpGraph(ops, graph.edges), topology


def test_a_view_goes_with_its_producer_and_a_parameter_with_its_reader() -> None:
    graph = make_graph({"w": 0, "a": 3, "view": 0, "b": 2}, [("w", "a", 8), ("a", "view", 8), ("view", "b", 4)])
    found = _reduced(make_instance(graph, make_machine(2)))
    assert [graph.ops[op].id for op in found.kept] == ["a", "b"]
    # Half of the bytes travel after the view, as before.
    assert (
        found.reduced.successors[0][0][1][0][1] * 2 == make_instance(graph, make_machine(2)).successors[0][0][1][0][1]
    )


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_the_optimum_is_that_of_the_original(first: int) -> None:
    contracted = 0
    for seed in range(first, first + 100):
        instance = make_instance(*_with_views(seed))
        found = reduction(instance) if all(instance.allowed) else None
        if found is None:
            continue
        contracted += 1
        best, small = _best(instance), _best(found.reduced)
        assert (best is None) == (small is None), seed
        if best is not None and small is not None:
            assert small.makespan == best.makespan, seed
            back = found.expand(small)
            assert not broken_rules(instance, back), seed
            assert back.makespan == best.makespan, seed
            assert found.project(best).makespan == best.makespan, seed
    assert contracted > 30


@pytest.mark.parametrize("first", range(1000, 1200, 100))
def test_timetables_go_there_and_back(first: int) -> None:
    for seed in range(first, first + 100):
        instance = make_instance(*_with_views(seed))
        found = reduction(instance) if all(instance.allowed) and len(set(instance.component)) == 1 else None
        schedule = None if found is None else construct(instance, list_schedule)
        if found is not None and schedule is not None:
            there = found.project(schedule)
            assert not broken_rules(found.reduced, there), seed
            assert there.makespan <= schedule.makespan, seed
            back = found.expand(there)
            assert not broken_rules(instance, back), seed
            assert back.makespan <= there.makespan, seed
