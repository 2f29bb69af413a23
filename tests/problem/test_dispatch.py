"""One process that issues all ops, in the replay."""

from dataclasses import replace

import pytest
from runtime.random_plans import machine

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import replay


def problem_of(graph: OpGraph, step: str = "joint", devices: int = 2) -> Problem:
    return build_problem(graph, machine(devices), replace(Options.paper(), step=step))


def ends(graph: OpGraph, device: list[int], dispatch_s: float, step: str = "joint") -> dict[str, float]:
    ops, _ = replay(problem_of(graph, step), device, range(len(graph.ops)), dispatch_s)
    return {entry.op: entry.end_s for entry in ops}


# Two independent ops of 10 s on two devices; issuing takes 4 s: a runs 4 to 14, b 8 to 18. For nothing both end at 10.
def test_ops_are_issued_one_after_another() -> None:
    graph = OpGraph((Op("a", "x", time_s=10.0), Op("b", "x", time_s=10.0)), ())
    assert ends(graph, [0, 1], 4.0) == {"a": 14.0, "b": 18.0}
    assert ends(graph, [0, 1], 0.0) == {"a": 10.0, "b": 10.0}


# On one device issuing runs ahead of the device: a is issued at 1, b at 2, and b starts when a ends.
def test_issuing_runs_ahead_of_a_busy_device() -> None:
    graph = OpGraph((Op("a", "x", time_s=10.0), Op("b", "x", time_s=10.0)), ())
    assert ends(graph, [0, 0], 1.0) == {"a": 11.0, "b": 21.0}


# Transfers and ops of no time cost no issue: a is issued at 2, and b, which reads it on the other device, at 4.
def test_only_ops_that_take_time_are_issued() -> None:
    ops = Op("z", "x", time_s=0.0), Op("a", "x", time_s=10.0), Op("b", "x", time_s=10.0)
    assert ends(OpGraph(ops, (Edge("a", "b", 0),)), [0, 0, 1], 2.0) == pytest.approx(
        {"z": 0.0, "a": 12.0, "b": 22.0}, abs=1e-5
    )


# f takes 10 s; behind the barrier a and b, on two devices, are issued from 11 s on.
def test_issuing_starts_anew_behind_a_barrier() -> None:
    graph = OpGraph(
        (
            Op("f", "x", time_s=10.0, phase="forward"),
            Op("a", "x", time_s=5.0, phase="backward"),
            Op("b", "x", time_s=5.0, phase="backward"),
        ),
        (),
    )
    assert ends(graph, [0, 0, 1], 1.0, "autograd") == {"f": 11.0, "a": 17.0, "b": 18.0}
