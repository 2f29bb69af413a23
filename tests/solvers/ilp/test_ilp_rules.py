"""One test per rule of the ILP, each with its hand-computed optimum; ticks are seconds here.

The optimum is asked of the model alone, without bounds or a first schedule, and of the whole method.
"""

from ortools.sat.python import cp_model
from solvers.helpers import broken_rules, make_graph, make_machine, make_problem, no_bounds, one_worker, outcome_by_work

from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, new_solver, reader, search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Incumbent


def _optimum(graph: OpGraph, topology: Topology) -> int:
    problem = make_problem(graph, topology)
    assert problem.tick_s == 1
    instance, incumbent = build_instance(problem), Incumbent(one_worker())
    model, variables = build_model(instance, no_bounds(instance), problem.horizon)
    assert search(model, reader(variables, instance), incumbent, 60.0) is SearchEnd.OPTIMAL
    assert incumbent.best is not None
    assert not broken_rules(instance, incumbent.best)
    assert incumbent.bound == incumbent.best.makespan
    outcome = outcome_by_work(problem)
    assert outcome.schedule is not None
    assert outcome.schedule.makespan == outcome.lower_bound == incumbent.bound
    return incumbent.bound


def test_eq_7_only_on_allowed_devices() -> None:
    graph = make_graph({"a": 2, "b": 3, "c": 1}, devices={"a": ("d0",), "b": ("d0",)})
    # a and b one after another on d0: 5.
    assert _optimum(graph, make_machine(2)) == 5


def test_eq_7_a_group_shares_a_device() -> None:
    graph = make_graph({"a": 2, "b": 3, "c": 1}, colocate={"a": "g", "b": "g"})
    assert _optimum(graph, make_machine(2)) == 5


def test_eq_8_9_no_transfer_where_no_way_leads() -> None:
    devices = tuple(Device(f"d{i}") for i in range(3))
    topology = Topology(devices, (), (Link("d0", "d1", 1.0),))
    graph = make_graph({"a": 4, "b": 4, "c": 4, "d": 1}, [("a", "b", 0), ("a", "c", 0), ("a", "d", 0)])
    # d2 cannot be reached from a: 4 + (4 + 4 + 1 on two devices: 5) = 9; with d2 it would be 8.
    assert _optimum(graph, topology) == 9


def test_eq_8_9_the_best_route_depends_on_the_bytes() -> None:
    topology = Topology(
        (Device("d0"), Device("d1")),
        (Router("r"),),
        (Link("d0", "d1", 1.0), Link("d0", "r", 4.0, 1.0), Link("r", "d1", 4.0, 1.0)),
    )
    pins = {"a": ("d0",), "b": ("d1",)}
    # 2 bytes: direct 2 / 1 = 2, through r 2 / 4 + 1 + 2 / 4 + 1 = 3.
    assert _optimum(make_graph({"a": 1, "b": 1}, [("a", "b", 2)], devices=pins), topology) == 1 + 2 + 1
    # 16 bytes: direct 16, through r 16 / 4 + 1 + 16 / 4 + 1 = 10.
    assert _optimum(make_graph({"a": 1, "b": 1}, [("a", "b", 16)], devices=pins), topology) == 1 + 10 + 1


def test_eq_10_11_a_tensor_travels_before_it_is_read() -> None:
    graph = make_graph({"a": 5, "b": 5, "c": 1}, [("a", "c", 3), ("b", "c", 3)])
    # On two devices 5 + (3 / 1 + 1) + 1 = 10; on one 11.
    assert _optimum(graph, make_machine(2, latency_s=1.0)) == 10
    # With a latency of 3, one device wins.
    assert _optimum(graph, make_machine(2, latency_s=3.0)) == 11


def test_eq_12_zero_time_op_not_inside_another() -> None:
    graph = make_graph(
        {"a": 3, "z": 0, "b": 4, "c": 5},
        [("a", "z", 0), ("z", "b", 0)],
        devices={"a": ("d1",), "z": ("d0",), "b": ("d1",), "c": ("d0",)},
    )
    # z is ready at 3, inside c if c runs 0-5. z waits for c (5 + 4 = 9), or c for z (3 + 5 = 8).
    assert _optimum(graph, make_machine(2)) == 8


def test_eq_13_footprints_fit() -> None:
    graph = make_graph({"a": 2, "b": 2, "c": 3}, [("a", "b", 4), ("b", "c", 6)], output_bytes={"a": 1, "b": 3, "c": 4})
    # 8 bytes on devices of 5 bytes: a and c together (a | b needs 4 s, b | c 6 s: 2 + 4 + 2 + 6 + 3), or a and b
    # together: 2 + 2 + 6 + 3 = 13. All on one device, 7, do not fit.
    assert _optimum(graph, make_machine(2, memory=5)) == 13
    assert _optimum(graph, make_machine(2, memory=8)) == 7


def test_redundant_rows_cut_off_no_optimum() -> None:
    graph = make_graph({"a": 2, "b": 3, "c": 4, "d": 1}, [("a", "c", 1), ("b", "d", 2)])
    instance = build_instance(make_problem(graph, make_machine(2)))
    model, _ = build_model(instance, lower_bounds(instance), 20)
    solver = new_solver(1, 0, 60.0)
    # a, c on one device: 6; b, d on the other: 4.
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.objective_value == 6
