"""The paper's program as it is written: its optimum, by CP-SAT and, from the file, by a solver of linear programs."""

from pathlib import Path

import pytest
from ortools.linear_solver.python import model_builder
from solvers.brute_force import optimal_makespan
from solvers.helpers import make_problem, one_worker
from solvers.random_problems import random_problem

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.feasibility import require_feasible
from dlplacer.solvers.ilp.dlplacer_model import build_dlplacer_model, export_model
from dlplacer.solvers.methods import METHODS


def test_its_optimum_is_that_of_all_placements_orders_and_routes() -> None:
    for seed in range(40):
        graph, topology = random_problem(seed)
        problem, optimum_s = make_problem(graph, topology), optimal_makespan(graph, topology)
        try:
            require_feasible(problem)
            outcome = METHODS["dlplacer"](problem, one_worker())
        except InfeasibleError:
            assert optimum_s is None, seed
            continue
        assert optimum_s is not None, seed
        assert outcome.schedule is not None, seed
        optimum = optimum_s / problem.tick_s
        assert (outcome.schedule.makespan, outcome.lower_bound) == (optimum, optimum), seed


def test_the_written_program_has_the_same_optimum(tmp_path: Path) -> None:
    solved = 0
    for seed in range(12):
        graph, topology = random_problem(seed)
        problem, optimum_s = make_problem(graph, topology), optimal_makespan(graph, topology)
        if optimum_s is None:
            continue
        export_model(problem, tmp_path / "model.mps")
        linear = model_builder.Model()
        assert linear.import_from_mps_file(str(tmp_path / "model.mps"))
        solver = model_builder.Solver("scip")
        assert solver.solve(linear) == model_builder.SolveStatus.OPTIMAL, seed
        assert solver.objective_value == pytest.approx(float(optimum_s / problem.tick_s)), seed
        solved += 1
    assert solved > 5


def test_files_of_other_kinds_and_delays_of_other_kinds_are_refused(tmp_path: Path) -> None:
    graph, topology = random_problem(0)
    with pytest.raises(InputError, match=r"in \.mps or \.pb\.txt"):
        export_model(make_problem(graph, topology), tmp_path / "model.lp")
    with pytest.raises(InputError, match="delay=store-and-forward in place of cut-through"):
        build_dlplacer_model(build_problem(graph, topology, Options()))
