"""Garbage and large plans are checked without a crash, and quickly; plans refuse what is no plan at all."""

import math
from dataclasses import replace

import pytest
from check.broken import ALIVE, CROSSING, RELAYED, ROUTED, SHARED
from check.plans import changed, with_op
from hypothesis import given, settings
from hypothesis import strategies as st

from dlplacer.check import violations
from dlplacer.core.errors import InputError
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.plan import DeviceMemory, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Device

SENT = CROSSING.transfers[0]
NAMES, NODES = st.sampled_from(["x", "y", "t", "ghost"]), st.sampled_from(["a", "b", "c", "r", "nowhere"])
SECONDS = st.sampled_from([-1.0, 0.0, 1.0, 2.0, 5.0, 8.0, 1e300])
SEGMENTS = st.builds(
    TransferSegment, st.lists(st.tuples(NODES, NODES), min_size=1, max_size=3).map(tuple), SECONDS, SECONDS
)
TRANSFERS = st.builds(
    Transfer, NAMES, NAMES, NODES, st.integers(0, 30), st.lists(SEGMENTS, min_size=1, max_size=3).map(tuple)
)
OPTIONS = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, values in CHOICES.items() if name != "objective"}
)


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_plans_hold_finite_numbers(value: float) -> None:
    with pytest.raises(InputError, match=r"op 'x': end_s must be a finite number .it is -?(nan|inf)"):
        ScheduledOp("x", "a", 0.0, value)
    with pytest.raises(InputError, match=r"segment over \[\('a', 'b'\)\]: start_s must be a finite number"):
        TransferSegment((("a", "b"),), value, 1.0)
    with pytest.raises(InputError, match="plan: gap must be a finite number"):
        replace(CROSSING, gap=value)


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
