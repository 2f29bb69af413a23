"""Bounds from the links that no route avoids: never above the optimum, and above what idle links allow."""

import math

import pytest
from solvers.helpers import make_graph, no_bounds
from solvers.naive_model import naive_optimum
from solvers.random_problems import random_everything

from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.problem.route_table import UnavoidableLinks
from dlplacer.solvers.ilp.cp_sat_search import new_solver
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.instance import build_instance


def star(count: int) -> Topology:
    devices = tuple(Device(f"d{number}", "x") for number in range(count))
    return Topology(devices, (Router("switch"),), tuple(Link(device.id, "switch", 1.0) for device in devices))


def relaxed_optimum(graph: OpGraph, topology: Topology, options: Options, relaxed: bool = True) -> float:
    """The bound in seconds: the optimum when transfers hold what no route avoids, or, without transfers, nothing."""
    problem = build_problem(graph, topology, options)
    instance = build_instance(problem)
    model, _ = build_model(
        instance, no_bounds(instance), problem.horizon, with_transfers=relaxed, symmetric=False, relaxed=relaxed
    )
    solver = new_solver(1, 0, 30.0)
    assert solver.solve(model) == 4
    return math.floor(solver.best_objective_bound + 0.5) * float(problem.tick_s)


def test_four_ops_that_one_reads_wait_for_its_port() -> None:
    # Read elsewhere, three tensors of 4 take the reader's port until 10 + 3 · 4 = 22; two that stay are done at 20, and
    # then the other two are there since 18. Idle links would have all but one there at 14.
    ops = {f"p{number}": 10.0 for number in range(4)} | {"join": 1.0}
    graph = make_graph(ops, [(f"p{number}", "join", 4) for number in range(4)])
    assert naive_optimum(graph, star(5), Options()) == 21
    assert relaxed_optimum(graph, star(5), Options()) == pytest.approx(21)
    assert relaxed_optimum(graph, star(5), Options(), relaxed=False) == pytest.approx(15)


def test_what_joins_two_rings_is_taken_by_all_that_goes_between_them() -> None:
    rings = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (2, 3)]
    links = tuple(Link(f"d{a}", f"d{b}", 1.0) for a, b in rings)
    two = UnavoidableLinks(Topology(tuple(Device(f"d{number}", "x") for number in range(6)), (), links))
    assert two.between("d0", "d5") == (("d2", "d3"),)
    assert two.between("d5", "d0") == (("d3", "d2"),)
    assert two.between("d0", "d1") == ()


def test_no_schedule_beats_the_bound() -> None:
    raised = 0
    # Drawn at random; from 24 on those of 80 where it is above the optimum without transfers.
    for seed in (*range(8), 27, 46, 53):
        graph, topology, options = random_everything(seed)
        optimum = naive_optimum(graph, topology, options)
        if optimum is None or options.contention == "none":
            continue
        bound = relaxed_optimum(graph, topology, options)
        assert bound <= optimum + 1e-9, seed
        raised += bound > relaxed_optimum(graph, topology, options, relaxed=False) + 1e-9
    assert raised
