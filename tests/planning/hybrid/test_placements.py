"""Placements solved ahead: any executor, resuming, failures."""

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.hybrid.workers import Placed, PlaceSettings, presolve


class Inline(Executor):
    """Runs at once, in this thread, until it is told to fail."""

    def __init__(self, fail_at: int = 10**9) -> None:
        self.submitted = 0
        self.fail_at = fail_at

    def submit(self, run: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted += 1
        try:
            if self.submitted >= self.fail_at:
                raise KeyboardInterrupt
            future.set_result(run(*arguments, **options))
        except BaseException as error:
            future.set_exception(error)
        return future


def diamond(parts: int = 2) -> OpGraph:
    """A source, `parts` equal branches of 1 s, a sink."""
    names = [f"branch{number}" for number in range(parts)]
    ops = [Op("source", "x", 0.0), *(Op(name, "x", 1.0, gradient_bytes=100) for name in names), Op("sink", "x", 0.0)]
    edges = [Edge("source", name, 8) for name in names] + [Edge(name, "sink", 8) for name in names]
    return OpGraph(tuple(ops), tuple(edges), name=f"diamond{parts}")


def line(count: int) -> Topology:
    devices = tuple(Device(f"d{number}") for number in range(count))
    links = tuple(Link(f"d{number}", f"d{number + 1}", 1e9) for number in range(count - 1))
    return Topology(devices, (), links, name=f"line{count}")


def test_an_interrupted_presolve_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        presolve(Placed(diamond(6), 6.0), line(4), 4, (2, 3, 4), Inline(fail_at=3), tmp_path)
    kept = len(list(tmp_path.glob("*.json")))
    assert kept <= 2
    executor = Inline()
    rows = presolve(Placed(diamond(6), 6.0), line(4), 4, (2, 3, 4), executor, tmp_path)
    assert executor.submitted == len(rows) - kept


def test_placements_are_solved_and_resumed(tmp_path: Path) -> None:
    placed = Placed(diamond(4), 4.0, PlaceSettings(gap=0.0))
    rows = presolve(placed, line(4), 4, (2, 4), Inline(), tmp_path)
    # Four branches of 1 s take 2 s on two devices and 1 s on four.
    assert [row.value["makespan_s"] for row in rows] == pytest.approx([2.0, 1.0], abs=1e-6)
    assert [row.value["status"] for row in rows] == ["optimal"] * 2
    assert rows[0].value["gradient_shares"] == [0.5, 0.5]
    assert sorted(split.speedup for split in placed.solved.values() if split) == pytest.approx([2.0, 4.0])
    again = presolve(Placed(diamond(4), 4.0, PlaceSettings(gap=0.0)), line(4), 4, (2, 4), Inline(), tmp_path)
    assert all(row.cached for row in again)
    assert [row.value for row in again] == [row.value for row in rows]


def test_a_machine_without_a_plan_has_no_split() -> None:
    small = Topology(tuple(Device(f"d{n}", memory_bytes=10) for n in range(2)), (), (Link("d0", "d1", 1e9),))
    placed = Placed(diamond(2), 2.0)
    (row,) = presolve(placed, small, 2, (2,), Inline())
    assert row.value is None
    assert row.error
    assert list(placed.solved.values()) == [None]
