"""Memory over time in the model, against brute force."""

from dataclasses import replace

from ortools.sat.python import cp_model
from solvers.brute_force_options import optimum_under
from solvers.helpers import no_bounds
from solvers.random_problems import random_step

from dlplacer.core.topology import Device
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.ilp.cp_sat_search import new_solver
from dlplacer.solvers.ilp.ilp_model import build_exact_model
from dlplacer.solvers.instance.instance import build_instance


def test_workspace_counts_where_the_time_of_an_op_depends_on_its_device() -> None:
    compared = 0
    for seed in range(150):
        graph, topology, options = random_step(seed, 3)
        ops = tuple(replace(op, time_s={"gpu": op.time_s, "cpu": 1 + 2 * op.time_s}) for op in graph.ops)
        if len(topology.devices) < 3 or not any(op.workspace_bytes for op in ops):
            continue
        graph, options = replace(graph, ops=ops), replace(options, contention="link", memory="live")
        devices = tuple(Device(f"d{i}", kind, 9) for i, kind in enumerate(("gpu", "cpu", "cpu")))
        topology = replace(topology, devices=devices)
        problem = build_problem(graph, topology, options)
        instance = replace(build_instance(problem), sources=frozenset(), sinks=frozenset())
        if instance.traffic is None or not instance.traffic.routes.complete:
            continue
        model, _ = build_exact_model(
            problem, instance, no_bounds(instance), 4 * problem.horizon, None, every_route=True
        )
        solver, optimum = new_solver(1, 0, 60.0), optimum_under(graph, topology, options)
        status = solver.solve(model)
        assert (status == cp_model.INFEASIBLE) == (optimum is None), seed
        assert optimum is None or round(solver.objective_value) * problem.tick_s == optimum, seed
        compared += optimum is not None
    assert compared > 5
