"""Op times between alone and side by side, by the plan's own overlap."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.plot.plans import diamond

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.measure.fidelity.overlap import blended, overlap_shares, settled_shares


def plan(spans: dict[str, tuple[str, float, float]]) -> Plan:
    """Ops that ran there and then; the graph does not matter."""
    ops = tuple(ScheduledOp(op, *when) for op, when in spans.items())
    return replace(diamond(), ops=ops, transfers=(), memory={})


def test_shares_by_hand() -> None:
    ran = plan({"x": ("a", 0, 4), "z": ("a", 4, 6), "y": ("b", 3, 5), "w": ("b", 9, 10), "p": ("a", 2, 2)})
    assert overlap_shares(ran, {"a", "b"}) == pytest.approx({"x": 1 / 4, "z": 1 / 2, "y": 1, "w": 0})
    assert set(overlap_shares(ran, {"a"}).values()) == {0.0}


# The counterpart of x works all the time, y and its counterpart for a quarter.
def test_replicas_work_at_the_same_time() -> None:
    ran = plan({"x": ("a", 0, 4), "y": ("b", 3, 4)})
    assert overlap_shares(ran, {"a", "b"}, replicas=2) == pytest.approx({"x": (1 + 2 / 4) / 3, "y": 1})


@st.composite
def schedules(draw: st.DrawFn) -> Plan:
    spans = {}
    for device in "abc":
        marks = sorted(draw(st.sets(st.integers(0, 40), min_size=0, max_size=12)))
        for number, (start, end) in enumerate(zip(marks[::2], marks[1::2], strict=False)):
            spans[f"{device}{number}"] = (device, float(start), float(end))
    return plan(spans)


# Against looking at every unit of time.
@given(schedules())
def test_shares_are_means_over_time(ran: Plan) -> None:
    busy = {device: np.zeros(40) for device in "abc"}
    for entry in ran.ops:
        busy[entry.device][int(entry.start_s) : int(entry.end_s)] = 1
    found = overlap_shares(ran, {"a", "b", "c"})
    for entry in ran.ops:
        others = sum(busy[other] for other in "abc" if other != entry.device) / 2
        assert found[entry.op] == pytest.approx(others[int(entry.start_s) : int(entry.end_s)].mean())


def test_times_lie_between_alone_and_side_by_side() -> None:
    alone, together = {"x": 1.0, "y": 2.0, "z": 3.0}, {"x": 2.0, "y": 2.0, "z": 2.0}
    assert blended(alone, together, {"x": 0.25, "y": 0.5, "z": 1.0}) == {"x": 1.25, "y": 2.0, "z": 2.0}
    assert blended(alone, together, {}) == alone


# x and y start together: y ends first, and for the rest x is alone. x takes 4 alone and 8 beside, y 2 and 4: with a
# share f of x, x takes 4 + 4f and y 4 at f(y) = 1, so that f = 4 / (4 + 4f): f = (sqrt(5) - 1) / 2.
def test_the_plan_and_the_times_agree() -> None:
    def replay(times: dict[str, float]) -> Plan:
        return plan({"x": ("a", 0, times["x"]), "y": ("b", 0, times["y"])})

    alone, together = {"x": 4.0, "y": 2.0}, {"x": 8.0, "y": 4.0}
    found = settled_shares(alone, together, replay, {"a", "b"})
    assert found["y"] == 1.0
    assert found["x"] == pytest.approx((5**0.5 - 1) / 2, abs=0.05)
    assert settled_shares(alone, together, replay, {"a"}) == {"x": 0.0}
