"""Why an op is where it is, and what moves under pins: against solves with the op held there."""

from collections.abc import Iterator

import pytest
from solvers.helpers import make_graph, make_machine
from solvers.random_problems import random_problem

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.planning.place import place
from dlplacer.planning.what_if import elsewhere


def solved(graph: OpGraph, topology: Topology, **more: object) -> Plan:
    return place(graph, topology, time_limit_s=60, workers=1, **more).plan  # type: ignore[arg-type]


def test_an_op_that_its_data_hold_where_it_is() -> None:
    graph = make_graph({"a": 2, "b": 2, "c": 1}, [("a", "b", 3)])
    plan = solved(graph, make_machine(2), pins={"c": "d1", "a": "d0"})
    assert (plan.makespan_s, plan.placement["b"]) == (4, "d0")
    (there,) = elsewhere(plan, "b", 60, workers=1)
    # a 2 s, its tensor 3 s, b 2 s; the pins of a and c hold.
    assert (there.op, there.device) == ("b", "d1")
    assert (there.makespan_s, there.lower_bound_s) == (7, 7)
    assert there.kept == "", "the pins tell the devices apart"


def test_interchangeable_devices_keep_one_op_in_place() -> None:
    graph = make_graph({"a": 4, "b": 2, "c": 2}, [("a", "b", 8)])
    plan = solved(graph, make_machine(2))
    assert plan.makespan_s == 6
    (there,) = elsewhere(plan, "b", 60, workers=1)
    # Without a held, both would just move: no second longer. With it: a 4 s, 8 s on the link, b 2 s.
    assert there.kept == "a"
    assert there.makespan_s == there.lower_bound_s == 14


def _ops_of_random_plans() -> Iterator[tuple[int, Plan, str]]:
    for seed in range(0, 60, 6):
        graph, topology = random_problem(seed)
        if len(topology.devices) < 2:
            continue
        try:
            plan = solved(graph, topology, options=Options.paper())
        except (InputError, InfeasibleError):
            continue
        yield seed, plan, plan.ops[-1].op


def test_each_answer_is_the_optimum_with_the_op_there() -> None:
    compared = 0
    for seed, plan, op in _ops_of_random_plans():
        for there in elsewhere(plan, op, 600, workers=1):
            pins = [(op, there.device), *([(there.kept, plan.placement[there.kept])] if there.kept else [])]
            try:
                cold = solved(plan.graph, plan.topology, options=plan.options, pins=pins)
            except (InputError, InfeasibleError):
                assert there.makespan_s is None, seed
                assert there.note, seed
                continue
            assert there.makespan_s == pytest.approx(cold.makespan_s), (seed, there)
            assert there.lower_bound_s == pytest.approx(cold.makespan_s), (seed, there)
            assert cold.makespan_s >= plan.makespan_s * (1 - 1e-9), "the plan is optimal, and pins only hold it back"
            compared += 1
    assert compared > 3, compared
