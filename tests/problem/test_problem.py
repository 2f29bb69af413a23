"""The integer problem: names become positions, times become ticks."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.problem.ticks import MAX_TICKS

PAPER = Options.paper()


def two_devices(rate: float = 1.0, latency_s: float = 0.0) -> Topology:
    return Topology((Device("a", "gpu", memory_bytes=10), Device("b", "cpu")), (), (Link("a", "b", rate, latency_s),))


def chain(*times_s: float, size_bytes: int = 4) -> OpGraph:
    ops = tuple(Op(f"k{i}", "test", time_s) for i, time_s in enumerate(times_s))
    edges = tuple(Edge(a.id, b.id, size_bytes) for a, b in pairwise(ops))
    return OpGraph(ops, edges)


def test_commensurable_times_are_exact() -> None:
    # 6 us, 4 us and the delay 8 B ÷ 1 MB/s + 2 us = 10 us are multiples of 2 us; the horizon is 6 + 4 + 10 us.
    problem = build_problem(chain(6e-6, 4e-6, size_bytes=8), two_devices(1e6, 2e-6), PAPER)
    assert problem.tick_s == Fraction(2, 10**6)
    assert problem.duration == ((3, 3), (2, 2))
    assert problem.delay == (((0, 5), (5, 0)),)
    assert problem.horizon == 10


def test_incommensurable_times_round_down_to_coarse_ticks() -> None:
    problem = build_problem(chain(1.0, 1.000000000001), two_devices(3.0), PAPER)
    # Horizon: 1 + 1.000000000001 + 4/3 s, which is more than 2^30 ns.
    horizon_s = 2 + Fraction(1, 10**12) + Fraction(4, 3)
    assert problem.tick_s == horizon_s / (MAX_TICKS - 1)
    assert problem.horizon == MAX_TICKS - 1
    assert problem.duration[0][0] == problem.duration[1][0] == 1 // problem.tick_s
    assert problem.delay[0][0][1] == Fraction(4, 3) // problem.tick_s


TIMES = st.floats(0, 1e3, allow_subnormal=False) | st.integers(0, 1000)


@given(st.lists(TIMES, min_size=1, max_size=5), st.floats(1, 1e12), st.floats(0, 1), st.integers(0, 2**40))
def test_ticks_never_exceed_seconds(times_s: list[float], rate: float, latency_s: float, size_bytes: int) -> None:
    graph = chain(*times_s, size_bytes=size_bytes)
    problem = build_problem(graph, two_devices(rate, latency_s), PAPER)
    assert 1 <= problem.horizon < MAX_TICKS
    for op, row in zip(graph.ops, problem.duration, strict=True):
        assert isinstance(op.time_s, (int, float))
        slack = Fraction(repr(float(op.time_s))) - row[0] * problem.tick_s  # type: ignore[operator]
        assert 0 <= slack < problem.tick_s
    all_in_turn = sum(row[0] or 0 for row in problem.duration)
    all_in_turn += sum(problem.delay[arc.size][0][1] or 0 for arc in problem.arcs)
    assert all_in_turn <= problem.horizon


def test_the_horizon_takes_the_slowest_device_and_the_slowest_way() -> None:
    ops = (Op("x", "test", {"gpu": 1, "cpu": 7}), Op("y", "test", {"gpu": 2, "cpu": 3}, devices=("gpu",)))
    devices = (Device("a", "gpu"), Device("b", "cpu"), Device("c", "gpu"))
    topology = Topology(devices, (), (Link("a", "b", 1), Link("b", "c", 4)))
    problem = build_problem(OpGraph(ops, (Edge("x", "y", 4),)), topology, PAPER)
    # 7 s (x on the CPU) + 2 s (y may not go there) + 5 s (4 bytes from a over b to c: 4 + 1).
    assert problem.horizon * problem.tick_s == 14


def test_durations_follow_types_and_permissions() -> None:
    ops = (
        Op("x", "test", {"gpu": 1, "cpu": 2}),
        Op("y", "test", 3, devices=("cpu",)),
        Op("z", "test", {"gpu": 4}, devices=("a",)),
    )
    problem = build_problem(OpGraph(ops), two_devices(), PAPER)
    assert problem.duration == ((1, 2), (None, 3), (4, None))
    assert problem.allowed == ((0, 1), (1,), (0,))


def mistake_of(graph: OpGraph, topology: Topology, options: Options = PAPER) -> str:
    with pytest.raises(InputError) as caught:
        build_problem(graph, topology, options)
    return str(caught.value)


def test_an_op_without_a_time_is_named_with_the_device() -> None:
    message = mistake_of(OpGraph((Op("x", "test", {"gpu": 1}),)), two_devices())
    assert message.startswith("op 'x' has no time for device 'b' of type 'cpu'; add it to 'time_s'")


def test_an_op_that_no_device_may_run_is_named() -> None:
    message = mistake_of(OpGraph((Op("x", "test", 1, devices=("tpu", "c")),)), two_devices())
    assert message == (
        "op 'x' may run on tpu, c; the topology has devices and types a, b, cpu, gpu; change the op's 'devices'"
    )
