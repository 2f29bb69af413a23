"""Measured epochs survive a kill, run side by side, and become the file that `hybrid` reads."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from data_parallel.epochs.trainings import counted

from dlplacer.data_parallel import measure_epochs

HERE = Path(__file__).parent


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of calls; the folder of the trainings is the current one, as for a user."""
    path = tmp_path / "trainings"
    path.write_text("")
    monkeypatch.setenv("TRAININGS", str(path))
    monkeypatch.chdir(HERE)
    return path


def reached(metric: float) -> bool:
    return metric <= 0


def test_a_kill_loses_only_what_was_running(notes: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dlplacer", "epochs", "trainings:counted", "--batches", "1,2,4", "--seeds", "2"]
    command += ["--at-most", "0", "--checkpoint", str(tmp_path / "runs.json"), "--json"]
    killed = subprocess.run(command, env={**os.environ, "KILLED_AT": "4 0"}, capture_output=True, timeout=120)
    assert killed.returncode == -9
    assert notes.read_text().splitlines() == ["1 0 None 1", "1 1 None 1", "2 0 None 1", "2 1 None 1", "4 0 None 1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert notes.read_text().splitlines()[5:] == ["4 0 None 1", "4 1 None 1"]
    found = json.loads(done.stdout)
    # Epochs are workers + seed; the medians of two seeds lie between.
    assert found["epochs"] == {"1": 1.5, "2": 2.5, "4": 4.5}
    assert found["meta"]["epochs_by_seed"]["none"]["4"] == [4.0, 5.0]


def test_side_by_side_is_the_same(notes: Path, tmp_path: Path) -> None:
    arguments = {"reached": reached, "seeds": (0, 1), "max_epochs": 5}
    alone = measure_epochs(counted, [1, 3, 8], **arguments)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        told: list[tuple[int, int]] = []
        found = measure_epochs(
            counted,
            [1, 3, 8],
            **arguments,
            executor=executor,
            checkpoint=tmp_path / "runs.json",
            on_progress=lambda workers, seed, epoch, metric: told.append((workers, seed)),
        )
    assert found == alone
    assert found.points() == {1: 1.5, 3: 3.5, 8: None}
    assert sorted(told) == [(1, 0), (1, 1), (3, 0), (3, 1), (8, 0), (8, 1)]
    # Another look at the same file trains nothing; more epochs train again what did not get there.
    before = len(notes.read_text().splitlines())
    again = {"reached": reached, "seeds": (0, 1), "checkpoint": tmp_path / "runs.json"}
    assert measure_epochs(counted, [1, 3, 8], **again, max_epochs=5) == alone
    assert measure_epochs(counted, [1, 3], **again, max_epochs=3).points() == {1: 1.5, 3: None}
    assert len(notes.read_text().splitlines()) == before
    assert measure_epochs(counted, [8], **again, max_epochs=20).points() == {8: 8.5}
    assert len(notes.read_text().splitlines()) == before + 2


def ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_ctrl_c_ends_trainings_in_other_processes(notes: Path) -> None:
    arguments = ["epochs", "trainings:endless", "--batches", "1,2,3", "--max-epochs", "100000", "--jobs", "2"]
    command = [sys.executable, "-m", "dlplacer", *arguments, "--at-most", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as started:
        until = time.monotonic() + 120
        while len(running := notes.read_text().split()) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(started.pid, signal.SIGINT)
        try:
            _, error = started.communicate(timeout=60)
        finally:
            for process in map(int, running):
                if not ended(process):
                    os.kill(process, signal.SIGKILL)
                    pytest.fail("a training outlived the command")
    assert len(running) == 2
    assert started.returncode == 130
    assert error == "dlplacer: interrupted\n"
