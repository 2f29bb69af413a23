"""Replayed by hand: two transfers on one link, and the room that a copy takes while it travels."""

from dataclasses import replace

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.live_memory import memory_use
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import replay


def problem_of(graph: OpGraph, duplex: str = "full", **options: str) -> Problem:
    """On devices a and b, joined by a link of 10 bytes per second."""
    topology = Topology((Device("a"), Device("b")), (), (Link("a", "b", 10.0, 0.0, duplex),))
    return build_problem(graph, topology, replace(Options.paper(), **options))


# x on a and y on b end at 1 s and send 20 bytes each to the other device. Full duplex: both arrive at 3 s. Half duplex:
# the second transfer starts when the first has ended, at 3 s, and arrives at 5 s.
@pytest.mark.parametrize(("duplex", "ends"), [("full", [4.0, 4.0]), ("half", [4.0, 6.0])])
def test_a_half_duplex_link_carries_one_transfer_in_both_directions(duplex: str, ends: list[float]) -> None:
    ops = tuple(Op(name, "op", 1.0) for name in "xyuv")
    graph = OpGraph(ops, (Edge("x", "u", 20), Edge("y", "v", 20)))
    done, _ = replay(problem_of(graph, duplex, contention="link"), [0, 1, 1, 0], range(4))
    assert sorted(entry.end_s for entry in done if entry.op in "uv") == ends


# x on a sends 20 bytes from 1 to 3 s. z on b runs from 0 to 2 s and holds 8 bytes meanwhile: the copy has its room on b
# from the start of its transfer on, 28 bytes in all.
def test_a_copy_has_its_room_from_the_start_of_its_transfer() -> None:
    made = (TensorSpec((5,), "float32", 20),)
    graph = OpGraph(
        (Op("x", "op", 1.0, outputs=made, output_bytes=20), Op("z", "op", 2.0, workspace_bytes=8), Op("y", "op", 1.0)),
        (Edge("x", "y", 20),),
    )
    problem = problem_of(graph, memory="live")
    used = memory_use(problem, *replay(problem, [0, 1, 1], range(3)))
    assert (used["a"].peak_bytes, used["b"].peak_bytes) == (20, 28)
