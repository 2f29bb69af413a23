"""Processes that keep cores busy."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from runtime.random_plans import needs_two_cores

from dlplacer.core.errors import RunError
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.processes import busy_cores
from dlplacer.runtime.processes.busy_cores import BusyCores

pytestmark = needs_two_cores


def cpu_seconds(pid: int) -> float:
    """What a process has taken of a core so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sums(device: object) -> Callable[[], object]:
    """Some work."""
    return lambda: sum(range(1000))


@pytest.fixture
def cores() -> Iterator[list[CpuDevice]]:
    made = [CpuDevice(0), CpuDevice(1)]
    yield made
    for core in made:
        core.close()


def test_they_are_busy_for_a_while_and_end(cores: list[CpuDevice]) -> None:
    with closing(BusyCores(cores, sums)) as neighbours:
        with neighbours.busy([]):
            assert neighbours._handles == []
        with neighbours.busy([0, 1]):
            pass
        pids = [neighbours._neighbours[position].pid for position in (0, 1)]
        assert [os.sched_getaffinity(pid) for pid in pids] == [{core.core} for core in cores]
        taken = [*map(cpu_seconds, pids)]
        time.sleep(0.2)
        assert [*map(cpu_seconds, pids)] == taken
        with neighbours.busy([1]):
            time.sleep(0.5)
        assert cpu_seconds(pids[0]) == taken[0]
        assert cpu_seconds(pids[1]) > taken[1]
        assert len(neighbours._handles) == 2
    for gone in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(gone, 0)


def test_one_that_is_killed_is_named(cores: list[CpuDevice]) -> None:
    with closing(BusyCores(cores, sums)) as neighbours:
        with neighbours.busy([1]):
            pass
        os.kill(neighbours._neighbours[1].pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"core of device 'cpu:1' busy while .* was killed .*processes=.off"):
            neighbours.busy([1]).__enter__()


@pytest.mark.parametrize("word", [busy_cores._BEGIN, busy_cores._END])
def test_a_ctrl_c_between_a_word_and_its_answer_ends_them(
    word: bytes, cores: list[CpuDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    say = busy_cores._say

    def interrupted(neighbour: Any, said: bytes) -> None:
        if said == word:
            neighbour.connection.send_bytes(said)
            raise KeyboardInterrupt
        say(neighbour, said)

    with closing(BusyCores(cores, sums)) as neighbours:
        with neighbours.busy([0, 1]):
            pass
        monkeypatch.setattr(busy_cores, "_say", interrupted)
        with pytest.raises(KeyboardInterrupt), neighbours.busy([0, 1]):
            pass
        assert all(handle.has_ended for handle in neighbours._handles)
