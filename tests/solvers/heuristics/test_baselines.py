"""Heuristics keep the rules and the bounds."""

import importlib.util
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from solvers.brute_force import optimal_makespan
from solvers.helpers import broken_rules, found_by, make_problem, one_worker, packed_blocks
from solvers.random_problems import random_problem

from dlplacer.check import violations
from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.feasibility import require_feasible
from dlplacer.solvers.heuristics.list_rules import by_rank, construct, upward_ranks
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.methods import HEURISTICS, METHODS

needs_metis = pytest.mark.skipif(importlib.util.find_spec("pymetis") is None, reason="pymetis is not installed")
ALL = [pytest.param(name, marks=needs_metis if name == "min-cut" else ()) for name in HEURISTICS]
# One run of the program on each device may not fit, where other placements do.
ANYWHERE = [each for each in ALL if each.values[0] != "contiguous"]
BASELINES = [each for each in ANYWHERE if each.values[0] not in ("balanced", "sequential")]


@cache
def _tiny(seed: int) -> tuple[Problem, int | None]:
    problem = make_problem(*random_problem(seed))
    makespan = optimal_makespan(problem.graph, problem.topology)
    return problem, None if makespan is None else int(makespan / problem.tick_s)


def _crowded(seed: int) -> Problem:
    """40 ops with parameters, groups, pins and little memory on 2 to 4 devices, some slower, around a router."""
    random = Random(seed)
    count = random.choice([2, 3, 4])
    ops, edges = [], []
    for i in range(40):
        ops.append(
            Op(
                f"k{i}",
                "test",
                time_s={"fast": random.randint(1, 20) / 10, "slow": random.randint(5, 60) / 10} if i % 7 else 0.0,
                output_bytes=random.randint(0, 9),
                colocate=random.choice([None] * 6 + ["a", "b"]),
                devices=(f"d{random.randrange(count)}", "d0") if random.random() < 0.15 else None,
                module=random.choice([None, "m1", "m2", "m3", "m4"]),
            )
        )
        readers = random.sample(range(i), min(i, random.choice([0, 1, 2, 3])))
        edges += [Edge(f"k{j}", f"k{i}", random.randint(0, 30), tensor=f"k{j}-k{i}") for j in readers]
        if random.random() < 0.3:
            ops.append(Op(f"w{i}", "parameter", time_s=0.0, weight_bytes=random.randint(0, 9)))
            edges.append(Edge(f"w{i}", f"k{i}", 20))
    total = sum(op.footprint_bytes for op in ops)
    capacity = int(total / count * random.choice([1.15, 1.4, 2.0]))
    devices = tuple(Device(f"d{i}", type="slow" if i == 2 else "fast", memory_bytes=capacity) for i in range(count))
    links = tuple(Link(device.id, "r", random.choice([10.0, 30.0]), 0.1) for device in devices)
    return make_problem(OpGraph(tuple(ops), tuple(edges)), Topology(devices, (Router("r"),), links))


@pytest.mark.parametrize("method", ["single", *ALL])
def test_tiny_problems_against_all_placements_and_orders(method: str) -> None:
    found = 0
    for seed in range(3000, 3040):
        problem, optimum = _tiny(seed)
        try:
            require_feasible(problem)
            outcome = METHODS[method](problem, one_worker())
        except InfeasibleError:
            assert optimum is None, seed
            continue
        if outcome.schedule is None:
            assert method == "single", seed
            continue
        assert optimum is not None, seed
        assert outcome.lower_bound <= optimum, seed
        assert optimum <= outcome.schedule.makespan, seed
        assert not violations(assemble(problem, outcome, outcome.schedule, method, 0.0, {})), seed
        found += 1
    assert found > 15


@pytest.mark.parametrize("method", ANYWHERE)
def test_crowded_problems_keep_every_rule(method: str) -> None:
    for seed in range(15):
        problem = _crowded(seed)
        require_feasible(problem)
        instance = build_instance(problem)
        found = found_by(problem, method)
        assert found is not None, seed
        assert not broken_rules(instance, found), seed
        assert found.makespan >= lower_bounds(instance, 0.05).makespan, seed
        assert found == found_by(problem, method), seed


@pytest.mark.parametrize("method", BASELINES)
def test_decided_blocks_stay_where_they_are(method: str) -> None:
    for seed in range(15):
        problem = _crowded(seed)
        instance, rule = build_instance(problem), HEURISTICS[method](problem)
        packed = packed_blocks(problem)
        assert packed is not None, seed
        found = construct(instance, rule, packed)
        assert found is not None, seed
        assert [found.device[ops[0]] for ops in instance.members] == packed, seed
        loose = [device if block % 4 else -1 for block, device in enumerate(packed)]
        found = rule(instance, by_rank(instance, upward_ranks(instance)), loose)
        if found is not None:
            assert not broken_rules(instance, found), seed
            decided = (found.device[ops[0]] for ops in instance.members)
            assert all(assigned in (-1, device) for assigned, device in zip(loose, decided, strict=True)), seed


@pytest.mark.parametrize("method", ANYWHERE)
def test_names_do_not_matter(method: str) -> None:
    for seed in range(10):
        problem = _crowded(seed)
        new = {op.id: f"{(37 * position) % 101}-{op.id}" for position, op in enumerate(problem.graph.ops)}
        ops = tuple(replace(op, id=new[op.id]) for op in problem.graph.ops)
        edges = tuple(
            replace(edge, source=new[edge.source], target=new[edge.target], tensor=new[edge.source] + str(number))
            for number, edge in enumerate(problem.graph.edges)
        )
        renamed = make_problem(OpGraph(ops, edges), problem.topology)
        found, again = (found_by(p, method) for p in (problem, renamed))
        assert found == again, seed
