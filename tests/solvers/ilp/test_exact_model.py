"""What the model with transfers tells others."""

from dataclasses import replace
from random import Random

import pytest
from solvers.helpers import one_worker

import dlplacer as dp
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.heuristics.list_rules import construct, list_schedule
from dlplacer.solvers.ilp.ilp_model import solve_exactly
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Incumbent


def _ring_with_chords(seed: int) -> Problem:
    """Six devices of which some are joined, pinned ops, and tensors for which a detour may be the better way."""
    random = Random(seed)
    devices = tuple(Device(f"d{i}", type=f"t{i}") for i in range(6))
    pairs = [(i, j) for i in range(6) for j in range(i)]
    rates = {pair: random.choice([1.0, 1.0, 2.0]) for pair in pairs if pair[1] == pair[0] - 1 or random.random() < 0.7}
    links = tuple(Link(f"d{i}", f"d{j}", rate) for (i, j), rate in rates.items())
    ops = tuple(Op(f"k{i}", "test", time_s=1.0, devices=(f"d{random.randrange(6)}",)) for i in range(6))
    edges = tuple(Edge(f"k{j}", f"k{i}", bytes=random.choice([2, 4, 6])) for i, j in pairs if random.random() < 0.6)
    return build_problem(OpGraph(ops, edges), Topology(devices, (), links), dp.Options())


@pytest.mark.parametrize("seed", [0, 1, 14, 21, 44])
def test_what_bounds_a_model_without_some_routes_bounds_nothing(seed: int) -> None:
    problem = _ring_with_chords(seed)
    instance = build_instance(problem)
    assert instance.traffic is not None
    assert not instance.traffic.routes.complete
    heard: list[int] = []
    budget = replace(one_worker(), report=lambda makespan, bound: heard.append(bound))
    incumbent = Incumbent(budget)
    incumbent.offer(construct(instance, list_schedule))
    assert solve_exactly(problem, instance, lower_bounds(instance), incumbent, 30.0)
    assert incumbent.best is not None
    assert heard == sorted(heard)
    assert heard[-1] == incumbent.bound
    # Nothing is proven where there are too many routes to list them all.
    assert incumbent.bound in (0, incumbent.best.makespan)
