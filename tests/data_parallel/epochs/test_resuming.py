"""Measured epochs survive a kill, and become the file that `hybrid` reads."""

import json
import os
import subprocess
import sys
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


def test_a_checkpoint_trains_only_what_did_not_get_there(notes: Path, tmp_path: Path) -> None:
    again = {"reached": reached, "seeds": (0, 1), "checkpoint": tmp_path / "runs.json"}
    found = measure_epochs(counted, [1, 3, 8], **again, max_epochs=5)
    assert found.points() == {1: 1.5, 3: 3.5, 8: None}
    before = len(notes.read_text().splitlines())
    assert measure_epochs(counted, [1, 3, 8], **again, max_epochs=5) == found
    assert measure_epochs(counted, [1, 3], **again, max_epochs=3).points() == {1: 1.5, 3: None}
    assert len(notes.read_text().splitlines()) == before
    assert measure_epochs(counted, [8], **again, max_epochs=20).points() == {8: 8.5}
    assert len(notes.read_text().splitlines()) == before + 2
