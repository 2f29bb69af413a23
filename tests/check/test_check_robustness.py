"""Garbage and large plans are checked without a crash, and quickly; plans refuse what is no plan at all."""

import math
import time
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
from check.plans import sent
from hypothesis import given, settings
from hypothesis import strategies as st

from dlplacer.check import violations
from dlplacer.check.memory import used_bytes
from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.plan import DeviceMemory, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Link

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
@settings(derandomize=True, deadline=None, max_examples=300)
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
