"""The guard against OR-Tools issue 5293.

CP-SAT's presolve may drop the enforcement of a linear row whose Boolean coefficients sum past 2^31, and then prove a
wrong optimum. So the responsible presolve step is off, and no enforced row comes near that sum anyway.
"""

import pytest
from benchmarks.families import FAMILIES
from ortools.sat.python import cp_model
from solvers.helpers import make_machine, make_problem, no_bounds
from solvers.random_problems import random_problem

from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.problem.ticks import MAX_TICKS
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.instance import build_instance


def _largest_enforced_sum(model: cp_model.CpModel) -> int:
    largest = 0
    for constraint in model.proto.constraints:
        if constraint.enforcement_literal and constraint.has_linear():
            largest = max(largest, sum(abs(coefficient) for coefficient in constraint.linear.coeffs))
    return largest


def _model(graph: OpGraph, topology: Topology) -> cp_model.CpModel:
    problem = make_problem(graph, topology)
    assert problem.horizon <= MAX_TICKS
    instance = build_instance(problem)
    model, _ = build_model(instance, no_bounds(instance), problem.horizon)
    assert model.validate() == ""
    return model


@pytest.mark.parametrize("seed", range(6))
def test_enforced_rows_stay_small(seed: int) -> None:
    graph, topology = random_problem(seed)
    if all(build_instance(make_problem(graph, topology)).allowed):
        assert _largest_enforced_sum(_model(graph, topology)) < 2**31


@pytest.mark.parametrize("memory", [None, 3 * 2**30])
def test_enforced_rows_stay_small_on_a_real_size(memory: int | None) -> None:
    model = _model(FAMILIES["inception_like"](300, 1), make_machine(4, memory=memory, rate=12e9, latency_s=8e-6))
    assert _largest_enforced_sum(model) < 2**31
