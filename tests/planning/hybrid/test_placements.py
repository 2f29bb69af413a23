"""Splits of a worker's step by the solver."""

from itertools import pairwise

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.hybrid.workers import Placed


def diamond(parts: int = 2) -> OpGraph:
    """A source, `parts` equal branches of 1 s, a sink."""
    names = [f"branch{number}" for number in range(parts)]
    ops = [Op("source", "x", 0.0), *(Op(name, "x", 1.0, gradient_bytes=100) for name in names), Op("sink", "x", 0.0)]
    edges = [Edge("source", name, 8) for name in names] + [Edge(name, "sink", 8) for name in names]
    return OpGraph(tuple(ops), tuple(edges), name=f"diamond{parts}")


def line(count: int, memory_bytes: int | None = None, prefix: str = "d") -> Topology:
    names = [f"{prefix}{number}" for number in range(count)]
    links = tuple(Link(*pair, 1e9) for pair in pairwise(names))
    return Topology(tuple(Device(name, memory_bytes=memory_bytes) for name in names), (), links)


def test_equal_machines_are_solved_once() -> None:
    placed = Placed(diamond(4), 4.0, gap=0.0)
    # Four branches of 1 s take 2 s on two devices and 1 s on four.
    split = placed(2, line(2))
    assert split is not None
    assert (split.speedup, split.shares, split.used) == (pytest.approx(2.0), (0.5, 0.5), 2)
    assert placed(2, line(2, prefix="other")) is split
    assert placed(4, line(4)).speedup == pytest.approx(4.0)  # type: ignore[union-attr]


def test_a_machine_without_a_plan_has_no_split() -> None:
    assert Placed(diamond(2), 2.0)(2, line(2, memory_bytes=10)) is None
