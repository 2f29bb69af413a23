"""Sweeps: any executor, progress, resuming, failures."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from planning.hybrid.sweep_tasks import Square

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.hybrid.placement_task import PlacementTask
from dlplacer.planning.hybrid.sweeps import sweep


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


@pytest.fixture
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


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


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    tasks = [Square(n) for n in range(6)]
    with pytest.raises(KeyboardInterrupt):
        sweep(tasks, Inline(fail_at=4), tmp_path)
    solved = len(list(tmp_path.glob("*.json")))
    assert solved <= 3
    executor = Inline()
    sweep(tasks, executor, tmp_path)
    assert executor.submitted == 6 - solved


def test_processes_solve_placements_and_resume(processes: Executor, tmp_path: Path) -> None:
    tasks = [PlacementTask(diamond(2), line(2)), PlacementTask(diamond(4), line(2)), PlacementTask(diamond(2), line(1))]
    rows = sweep(tasks, processes, tmp_path)
    # two branches side by side take 1 s on two devices, four take 2 s; on one device nothing is gained
    assert [row.value["makespan_s"] for row in rows] == pytest.approx([1.0, 2.0, 2.0], abs=1e-6)
    assert [row.value["status"] for row in rows] == ["optimal"] * 3
    assert rows[0].value["gradient_shares"] == [0.5, 0.5]
    again = sweep(tasks, Inline(), tmp_path)
    assert all(row.cached for row in again)
    assert [row.value for row in again] == [row.value for row in rows]
