"""Replays against times computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.random_graphs import random_graph
from runtime.random_plans import machine, random_schedule, with_unit_times

from dlplacer.check import violations
from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import build_problem
from dlplacer.problem.simulate import replay, replay_plan
from dlplacer.solvers.instance.schedule import Outcome, ProblemSchedule

PAPER = Options.paper()
PAIR = Topology((Device("d0"), Device("d1")), (), (Link("d0", "d1", 10.0, 0.5),))

# a feeds b and c with 20 bytes each, b and c feed d with 10 and 30.
DIAMOND = OpGraph(
    (Op("a", "test", 1.0), Op("b", "test", 2.0), Op("c", "test", 4.0), Op("d", "test", 1.0)),
    (Edge("a", "b", 20, 0, "x"), Edge("a", "c", 20, 0, "x"), Edge("b", "d", 10, 0, "y"), Edge("c", "d", 30, 0, "z")),
)


def times(
    graph: OpGraph, topology: Topology, device: str, order: str = "", options: Options = PAPER
) -> dict[str, tuple]:
    """Op → (start, end), for a digit per op that names its device."""
    ops, _ = replay(
        build_problem(graph, topology, options),
        [int(digit) for digit in device],
        [graph.index[name] for name in order or "abcd"],
    )
    return {entry.op: (entry.start_s, entry.end_s) for entry in ops}


def a_plan(graph: OpGraph, topology: Topology, seed: int, options: Options = PAPER) -> Plan:
    problem = build_problem(graph, topology, options)
    schedule = random_schedule(problem, seed)
    return assemble(problem, Outcome(schedule, 0), schedule, "random", 0.0, {})


# x takes 20 / 10 + 0.5 = 2.5 s to d1: b runs there from 3.5 to 5.5, y takes 1.5 s back, d starts at max(5, 7).
def test_a_transfer_takes_its_bytes_and_its_latency() -> None:
    assert times(DIAMOND, PAIR, "0100") == {"a": (0, 1), "b": (3.5, 5.5), "c": (1, 5), "d": (7, 8)}


# Both edges of x cross. Without contention they travel side by side, so once or twice makes no difference to the times.
def test_transfers_per_edge_and_per_device() -> None:
    problem = build_problem(DIAMOND, PAIR, PAPER)
    _, per_edge = replay(problem, [0, 1, 1, 1], range(4))
    _, per_device = replay(build_problem(DIAMOND, PAIR, replace(PAPER, transfers="device")), [0, 1, 1, 1], range(4))
    assert [(sent.tensor, sent.start_s, sent.end_s) for sent in per_edge] == [("x", 1.0, 3.5)] * 2
    assert [(sent.tensor, sent.start_s, sent.end_s) for sent in per_device] == [("x", 1.0, 3.5)]


# Through a router: 20/10 + 0.5 + 20/5 + 0.25 = 6.75 s link by link (eq. 11), 20/5 + 0.75 = 4.75 s cut through.
@pytest.mark.parametrize(("delay", "arrival_s"), [("store-and-forward", 7.75), ("cut-through", 5.75)])
def test_routes_of_several_links(delay: str, arrival_s: float) -> None:
    links = (Link("d0", "r", 10.0, 0.5), Link("r", "d1", 5.0, 0.25))
    topology = Topology((Device("d0"), Device("d1")), (Router("r"),), links)
    graph = OpGraph((Op("a", "test", 1.0), Op("b", "test", 2.0)), (Edge("a", "b", 20),))
    assert times(graph, topology, "01", "ab", replace(PAPER, delay=delay))["b"] == (arrival_s, arrival_s + 2)


def test_an_order_that_cannot_run_names_the_op() -> None:
    with pytest.raises(MismatchError, match="op 'd' comes before an op that it depends on"):
        times(DIAMOND, PAIR, "0000", "adbc")


@given(st.integers(0, 10**6), st.integers(1, 3))
@settings(max_examples=60)
def test_replaying_a_plan_under_its_own_costs_changes_nothing(seed: int, devices: int) -> None:
    plan = a_plan(with_unit_times(random_graph(seed)), machine(devices), seed)
    again = replay_plan(plan, plan.graph, plan.topology)
    assert {entry.op: entry for entry in again.ops} == {entry.op: entry for entry in plan.ops}
    assert again.makespan_s == plan.makespan_s
    assert sorted(again.transfers, key=repr) == sorted(plan.transfers, key=repr)
    assert (again.status, again.lower_bound_s, again.gap) == ("feasible", 0.0, 1.0 if plan.makespan_s else 0.0)


@given(st.integers(0, 10**6), st.integers(1, 3))
@settings(max_examples=60)
def test_a_replayed_plan_keeps_all_rules_and_its_order(seed: int, devices: int) -> None:
    plan = a_plan(with_unit_times(random_graph(seed)), machine(devices), seed)
    slower = replace(plan.graph, ops=tuple(replace(op, time_s=(i % 3) * 1e-3) for i, op in enumerate(plan.graph.ops)))
    again = replay_plan(plan, slower, plan.topology)
    assert not list(violations(again))
    computing = {name for name, op in ((op.id, op) for op in slower.ops) if op.time_s}
    for device, ops in plan.order.items():
        assert [op for op in again.order[device] if op in computing] == [op for op in ops if op in computing]


# Twice the time for c and half the rate: b waits for x until 1 + 20/5 + 0.5 = 5.5, its y arrives at 7.5 + 2.5 = 10,
# and c has ended at 9.
def test_replaying_under_changed_costs() -> None:
    problem = build_problem(DIAMOND, PAIR, PAPER)
    schedule = ProblemSchedule(problem, (0, 1, 0, 0), tuple(int(start / problem.tick_s) for start in (0, 3.5, 1, 7)))
    plan = assemble(problem, Outcome(schedule, 0), schedule, "by hand", 0.0, {})
    assert plan.makespan_s == 8
    ops = tuple(replace(op, time_s=8.0) if op.id == "c" else op for op in DIAMOND.ops)
    links = (Link("cpu:0", "cpu:1", 5.0, 0.5),)
    measured = Topology((Device("cpu:0"), Device("cpu:1")), (), links)
    again = replay_plan(plan, replace(DIAMOND, ops=ops), measured)
    assert {entry.op: (entry.device, entry.start_s, entry.end_s) for entry in again.ops} == {
        "a": ("cpu:0", 0, 1),
        "b": ("cpu:1", 5.5, 7.5),
        "c": ("cpu:0", 1, 9),
        "d": ("cpu:0", 10, 11),
    }
    assert again.makespan_s == 11
    assert again.topology is measured
