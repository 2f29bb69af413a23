"""Replays of random steps with all that a problem may have, against a simulation moment by moment."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from check.reckoning import is_right, peak_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from problem.naive_step import naive_step
from problem.random_hosts import with_hosts
from solvers.random_problems import random_everything

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import CHOICES
from dlplacer.core.plan import Plan, Transfer
from dlplacer.planning.assemble import plan_of
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.instance.schedule import Outcome


def a_step(seed: int) -> tuple[Problem, list[int], list[int]]:
    """A problem, the device of every op, and an order that can run; half of the machines have no hosts."""
    random = Random(seed)
    graph, topology, options = random_everything(seed)
    options = replace(options, contention=random.choice(CHOICES["contention"]))
    graph = replace(graph, ops=tuple(replace(op, colocate=None, devices=None) for op in graph.ops))
    machine = replace(topology, devices=tuple(replace(device, memory_bytes=None) for device in topology.devices))
    problem = build_problem(graph, with_hosts(machine, random) if random.random() < 0.7 else machine, options)
    few = random.sample(range(problem.device_count), random.randint(1, min(3, problem.device_count)))
    return problem, [random.choice(few) for _ in graph.ops], _an_order(graph, random)


def _an_order(graph: OpGraph, random: Random) -> list[int]:
    order: list[str] = []
    while len(order) < len(graph.ops):
        ready = [
            op.id
            for op in graph.ops
            if op.id not in order and all(edge.source in order for edge in graph.edges_into[op.id])
        ]
        order.append(random.choice(ready))
    return [graph.index[name] for name in order]


def as_plan(problem: Problem, device: Sequence[int], order: Sequence[int]) -> Plan:
    ops, transfers = replay(problem, device, order)
    return plan_of(problem, ops, transfers, Outcome(None, 0), "by chance", 0.0, {})


def _key(problem: Problem, transfer: Transfer) -> tuple[object, ...]:
    times = tuple((round(part.start_s, 6), round(part.end_s, 6)) for part in transfer.segments)
    return transfer.tensor, transfer.target, times


@given(st.integers(0, 10**7))
@settings(max_examples=150)
def test_replays_agree_with_a_simulation_moment_by_moment(seed: int) -> None:
    problem, device, order = a_step(seed)
    plan = as_plan(problem, device, order)
    ends, sent = naive_step(problem, device, order)
    assert {entry.op: round(entry.end_s, 6) for entry in plan.ops} == ends
    found = Counter(_key(problem, transfer) for transfer in plan.transfers)
    assert found == Counter((tensor, target, tuple(times)) for (tensor, target, _), times in sent.items())


@given(st.integers(0, 10**7))
@settings(max_examples=60)
def test_replays_keep_the_rules_and_their_peaks(seed: int) -> None:
    plan = as_plan(*a_step(seed))
    assert violations(plan) == ()
    assert is_right(plan)
    assert {name: told.peak_bytes for name, told in plan.memory.items()} == {
        name: peak_bytes(plan, name) for name in plan.memory
    }
