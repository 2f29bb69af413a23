"""Garbage and large plans are checked without a crash, and quickly; plans refuse what is no plan at all."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from check import plans
from check.broken import (
    ALIVE,
    CONTENDED,
    CROSSING,
    RELAYED,
    ROUTED,
    SHARED,
)
from check.plans import changed, sent, with_op
from hypothesis import given, settings
from hypothesis import strategies as st

from dlplacer.check import violations
from dlplacer.check.memory import used_bytes
from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.plan import DeviceMemory, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Device, Link

SENT = CROSSING.transfers[0]
NAMES, NODES = st.sampled_from(["x", "y", "t", "ghost"]), st.sampled_from(["a", "b", "c", "r", "nowhere"])
SECONDS = st.sampled_from([-1.0, 0.0, 1.0, 2.0, 5.0, 8.0, 1e300])
SEGMENTS = st.builds(
    TransferSegment, st.lists(st.tuples(NODES, NODES), min_size=1, max_size=3).map(tuple), SECONDS, SECONDS
)
TRANSFERS = st.builds(
    Transfer, NAMES, NAMES, NODES, st.integers(0, 30), st.lists(SEGMENTS, min_size=1, max_size=3).map(tuple)
)
OPTIONS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()})


@given(st.data())
@settings(max_examples=150)
def test_no_plan_is_too_wrong_to_be_checked(data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from([CROSSING, ROUTED, RELAYED, SHARED, ALIVE]))
    names = st.sampled_from([op.id for op in plan.graph.ops] + ["ghost"])
    ops = tuple(
        ScheduledOp(data.draw(names), data.draw(NODES), data.draw(SECONDS), data.draw(SECONDS)) for _ in plan.ops
    )
    wrong = replace(
        plan,
        options=Options(**data.draw(OPTIONS)),
        ops=data.draw(st.sampled_from([ops, plan.ops, plan.ops[::-1]])),
        transfers=tuple(data.draw(st.lists(TRANSFERS, max_size=3))),
        memory={data.draw(NODES): DeviceMemory(None, 1)},
        makespan_s=data.draw(SECONDS),
    )
    for violation in violations(wrong):
        assert violation.rule
        assert violation.message


@pytest.mark.parametrize("memory_rule", ["live", "sum"])
def test_large_plans_are_checked_quickly(memory_rule: str) -> None:
    # A chain of 3,000 ops of 1 s; every third edge crosses to the other device and takes 4 B ÷ 4 B/s = 1 s.
    names = [f"op{i}" for i in range(3000)]
    graph = OpGraph(
        tuple(Op(name, "test", 1, output_bytes=4, workspace_bytes=1) for name in names),
        tuple(Edge(before, after, 4) for before, after in pairwise(names)),
    )
    now, here, scheduled, transfers = 0.0, "a", [], []
    for position, name in enumerate(names):
        if position % 3 == 2:
            there = "b" if here == "a" else "a"
            hop = (here + there, now, now + 1)
            transfers.append(sent(f"{names[position - 1]}:0->{name}", names[position - 1], 4, hop))
            now, here = now + 1, there
        scheduled.append((name, here, now, now + 1))
        now += 1
    plan = plans.plan(
        graph, plans.machine(Link("a", "b", 4)), plans.options(memory=memory_rule), scheduled, transfers, None
    )
    assert len(transfers) == 1000
    began = time.thread_time()
    assert {violation.rule for violation in violations(plan)} == ({"eq. 13 memory"} if memory_rule == "sum" else set())
    assert time.thread_time() - began < 60  # takes a second at most
    # Alive at once: an output, the next one or its copy, and workspace.
    assert memory_rule == "sum" or used_bytes(plan) == {"a": 9, "b": 9}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_plans_hold_finite_numbers(value: float) -> None:
    with pytest.raises(InputError, match=r"op 'x': end_s is -?(nan|inf); it must be finite"):
        ScheduledOp("x", "a", 0.0, value)
    with pytest.raises(InputError, match=r"segment over \[\('a', 'b'\)\]: start_s is"):
        TransferSegment((("a", "b"),), value, 1.0)
    with pytest.raises(InputError, match="the plan: gap is"):
        replace(CROSSING, gap=value)


HUGE = 10**400


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ScheduledOp("x", "a", 0, HUGE), r"op 'x': end_s is 1000.*\.\.\..*0; it must be finite"),
        (lambda: ScheduledOp("x", "a", True, 1.0), r"op 'x': start_s is True \(bool\); give a number"),
        (lambda: replace(CROSSING, solve_s=HUGE), r"the plan: solve_s is 1000.*; it must be finite"),
        (lambda: replace(CROSSING, solve_s=-1.0), r"the plan: solve_s is -1.0; it must be finite and at least 0"),
        (lambda: replace(CROSSING.transfers[0], bytes=-1), r"transfer of 't': bytes is -1; it must be finite and at l"),
        (lambda: replace(CROSSING.transfers[0], bytes=HUGE), r"transfer of 't': bytes is 1000.*; it must be finite"),
        (lambda: DeviceMemory(8, True), r"device memory: peak_bytes is True \(bool\); give a whole number"),
        (lambda: DeviceMemory(8, -1), r"device memory: peak_bytes is -1; it must be finite and at least 0"),
        (lambda: DeviceMemory(math.nan, 1), r"device memory: capacity_bytes is nan; it must be finite"),
        (lambda: replace(CROSSING, memory={"a": 8}), r"plan: memory\['a'\] is 8 \(int\); give an object of class Dev"),
        (
            lambda: TransferSegment((("a",),), 0.0, 1.0),
            r"segment: a link of its route is of type tuple; give a \(from, to\) pair",
        ),
        (lambda: TransferSegment((("a", 1),), 0.0, 1.0), r"segment: a link of its route is .*give a \(from, to\) pair"),
        (
            lambda: TransferSegment(("ab",), 0.0, 1.0),
            r"segment: a link of its route is 'ab' \(str\); give a \(from, to",
        ),
    ],
)
def test_plans_hold_what_they_say(make: Callable[[], object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make()


def test_durations_beyond_floats_hide_nothing() -> None:
    # Their sum is infinite, and so would be the tolerance.
    late = TransferSegment((("a", "b"),), -1.7e308, 1.7e308)
    assert "eq. 11 delay" in {
        v.rule for v in violations(replace(CROSSING, transfers=(replace(SENT, segments=(late,)),)))
    }


def test_an_op_that_would_be_slow_elsewhere_hides_nothing() -> None:
    slow = with_op(CROSSING, "y", time_s={"gpu": 3.0, "abacus": 1e12})
    machine = replace(slow.topology, devices=(*slow.topology.devices, Device("c", "abacus")))
    assert violations(replace(slow, topology=machine, memory={})) == ()
    early = replace(changed(slow, "y", start_s=4.0, end_s=7.0), topology=machine, memory={})
    assert {violation.rule for violation in violations(early)} == {"eq. 10 precedence"}


def test_plans_hold_transfers_that_go_somewhere() -> None:
    with pytest.raises(InputError, match="a segment has no links; name the links that it travels"):
        TransferSegment((), 0.0, 1.0)
    with pytest.raises(InputError, match="the transfer of 't' to 'b' has no segments; give it a route"):
        Transfer("t", "x", "b", 4, ())


def test_plans_are_optimal_or_feasible() -> None:
    with pytest.raises(InputError, match="the plan's status is 'perfect'; use one of optimal, feasible"):
        replace(CROSSING, status="perfect")


def test_views_of_a_plan() -> None:
    assert CROSSING.placement == {"x": "a", "y": "b"}
    assert CROSSING.scheduled["y"] is CROSSING.ops[1]
    assert CONTENDED.order == {"a": ("x", "y", "m"), "b": ("k", "u", "v")}
    assert (RELAYED.transfers[0].start_s, RELAYED.transfers[0].end_s) == (2, 9)
