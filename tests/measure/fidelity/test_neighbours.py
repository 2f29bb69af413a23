"""Steps on one core while processes keep the others busy."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from frontend.torch.small_models import build
from runtime.random_plans import needs_two_cores

from dlplacer.core.errors import RunError
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.measure.fidelity import neighbours
from dlplacer.measure.fidelity.neighbours import NeighbourProfiler
from dlplacer.runtime.devices.cpu import CpuDevice

pytestmark = needs_two_cores


def cpu_seconds(pid: int) -> float:
    """What a process has taken of a core so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def profiler_of(cores: list[CpuDevice]) -> NeighbourProfiler:
    job = build("branches")
    return NeighbourProfiler(job, capture_job(job, default_rewrites()), cores)


@pytest.fixture
def cores() -> Any:
    made = [CpuDevice(0), CpuDevice(1)]
    yield made
    for core in made:
        core.close()


def test_neighbours_work_during_the_steps_alone_and_end(cores: list[CpuDevice]) -> None:
    with closing(profiler_of(cores)) as profiler:
        assert len(profiler.plain_steps([0])) == 1
        assert profiler._handles == []
        first, second = profiler.recorded_steps([0, 1])
        assert first.op_times_s.keys() == second.op_times_s.keys()
        pids = [profiler._neighbours[position].pid for position in (0, 1)]
        taken = [*map(cpu_seconds, pids)]
        time.sleep(0.2)
        assert [*map(cpu_seconds, pids)] == taken
        with profiler._busy([1]):
            time.sleep(0.5)
        assert cpu_seconds(pids[0]) == taken[0]
        assert cpu_seconds(pids[1]) > taken[1]
        profiler.plain_steps([0, 1])
        assert len(profiler._handles) == 2
    for gone in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(gone, 0)


def test_a_neighbour_that_is_killed_is_named(cores: list[CpuDevice]) -> None:
    with closing(profiler_of(cores)) as profiler:
        profiler.plain_steps([0, 1])
        os.kill(profiler._neighbours[1].pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"core of device 'cpu:1' busy for a prediction was killed .*processes=.off"):
            profiler.plain_steps([0, 1])


@pytest.mark.parametrize("word", [neighbours._BEGIN, neighbours._END])
def test_a_ctrl_c_between_a_word_and_its_answer_ends_them(
    word: bytes, cores: list[CpuDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    say = neighbours._say

    def interrupted(neighbour: Any, said: bytes) -> None:
        if said == word:
            neighbour.connection.send_bytes(said)
            raise KeyboardInterrupt
        say(neighbour, said)

    with closing(profiler_of(cores)) as profiler:
        profiler.plain_steps([0, 1])
        monkeypatch.setattr(neighbours, "_say", interrupted)
        with pytest.raises(KeyboardInterrupt):
            profiler.plain_steps([0, 1])
        assert all(handle.has_ended for handle in profiler._handles)


class Timed:
    """A profiler whose steps note which neighbours are busy."""

    def __init__(self, busy: list[Any]) -> None:
        self.busy, self.seen = busy, []  # type: ignore[var-annotated]

    def plain_steps(self, positions: list[int]) -> list[float]:
        self.seen.append((tuple(positions), tuple(self.busy)))
        return [1.0]


def test_devices_are_timed_one_by_one_beside_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    busy: list[Any] = []

    def say(neighbour: Any, word: bytes) -> None:
        busy.append(neighbour) if word == neighbours._BEGIN else busy.remove(neighbour)

    monkeypatch.setattr(neighbours, "_say", say)
    monkeypatch.setattr(NeighbourProfiler, "_neighbour", lambda self, position: position)
    timed = Timed(busy)
    profiler = NeighbourProfiler(cast(Any, None), cast(Any, None), [], cast(Any, timed))
    assert profiler.plain_steps([0, 2, 3]) == [1.0] * 3
    assert timed.seen == [((0,), (2, 3)), ((2,), (0, 3)), ((3,), (0, 2))]
    assert busy == []
