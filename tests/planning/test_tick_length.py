"""One slow link or one long time must not make ticks longer than ops: then anything would count as proven."""

import pytest

import dlplacer as dp
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place

SLOW_BYTES_PER_S = (1e3, 1e-3, 1e-9, 1e-15)


def four_ops(bytes_per_s: float, far_s: float = 1.0) -> tuple[OpGraph, Topology]:
    """Four ops of a second and one edge; the last op takes so long on the second device."""
    times = ({"a": 1.0, "b": 1.0},) * 3 + ({"a": 1.0, "b": far_s},)
    ops = tuple(dp.Op(f"op{number}", "op", times[number]) for number in range(4))
    graph = OpGraph(ops, (dp.Edge("op0", "op1", 4),))
    return graph, Topology((Device("d0", "a"), Device("d1", "b")), (), (Link("d0", "d1", bytes_per_s),))


@pytest.mark.parametrize("bytes_per_s", SLOW_BYTES_PER_S)
def test_link_that_no_good_plan_uses_hides_no_time(bytes_per_s: float) -> None:
    plan = place(*four_ops(bytes_per_s), time_limit_s=20, workers=1).plan
    # op0 and op1 on one device, op2 and op3 on the other.
    assert (plan.makespan_s, plan.status) == (pytest.approx(2.0), "optimal")
    assert plan.lower_bound_s == pytest.approx(2.0)


@pytest.mark.parametrize("far_s", [1e4, 1e8, 1e12])
def test_time_that_no_good_plan_has_hides_no_time(far_s: float) -> None:
    plan = place(*four_ops(1e9, far_s), time_limit_s=20, workers=1).plan
    assert (plan.makespan_s, plan.status) == (pytest.approx(2.0, rel=1e-6), "optimal")
