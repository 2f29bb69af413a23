"""A plan is found where memory over time is so short that ops have to follow one another."""

import pytest

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.planning.place import place
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.feasibility.room_search import search_room
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.memory_admission import overflow


def _tight() -> tuple[OpGraph, Topology]:
    """A random graph of which no heuristic finds a plan, on four devices around a router."""

    def times(seconds: float) -> dict[str, float]:
        return {"a": seconds, "b": 2.5 * seconds, "c": 0.4 * seconds}

    ops = (
        Op("o0", "x", times(0.05), output_bytes=10, workspace_bytes=100),
        Op("o1", "x", times(0.245), gradient_bytes=50, output_bytes=200, colocate="g1"),
        Op("o2", "x", times(0.02), weight_bytes=10, gradient_bytes=50, state_bytes=40),
        Op("o4", "x", times(0.115), state_bytes=40, output_bytes=10),
        Op("o6", "x", 0.01, weight_bytes=100, state_bytes=40, output_bytes=200),
        Op(
            *("o7", "x", times(0.1)),
            weight_bytes=10,
            state_bytes=40,
            output_bytes=200,
            workspace_bytes=100,
            colocate="g1",
        ),
        Op("o8", "x", times(0.0), weight_bytes=379, output_bytes=10, colocate="g1"),
    )
    edges = (
        *(Edge("o0", "o1", 10, tensor="t0"), Edge("o1", "o2", 10), Edge("o0", "o4", 500)),
        *(Edge("o2", "o6", 0), Edge("o4", "o8", 500)),
    )
    devices = Device("d0", "c", 443), Device("d1", "c", 887), Device("d2", "b", 221), Device("d3", "a", 443)
    links = (
        *(Link("d0", "r", 1e3), Link("d1", "r", 1e4, duplex="half"), Link("d2", "r", 1e3, duplex="half")),
        Link("d3", "r", 1e5, 0.01, duplex="half", count=2),
    )
    return OpGraph(ops, edges), Topology(devices, (Router("r"),), links)


def test_a_plan_is_found_where_no_heuristic_finds_one() -> None:
    graph, topology = _tight()
    plan = place(graph, topology, time_limit_s=20, gap=0.999, workers=2).plan
    assert violations(plan) == ()
    assert plan.makespan_s >= 0.204  # the optimum


@pytest.mark.parametrize("seed", range(3))
def test_what_is_found_keeps_the_memory(seed: int) -> None:
    problem = build_problem(*_tight(), Options())
    instance = build_instance(problem)
    found = search_room(problem, instance, None, 20.0, seed)
    assert found is not None
    assert not any(overflow(problem, instance, found))
