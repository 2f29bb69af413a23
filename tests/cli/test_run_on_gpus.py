"""How ``dlplacer run`` spreads several GPUs over processes."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from runtime.random_plans import random_plan

from dlplacer.cli import run as command
from dlplacer.cli.main import main
from dlplacer.files import write_plan
from dlplacer.frontend import capture
from dlplacer.models import mlp
from dlplacer.runtime.distributed.ranks import rank_per_gpu


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("gpus") / "plan.json"
    write_plan(path, random_plan(capture(mlp(batch_size=4)), 2, seed=1))
    return str(path)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(how, devices) of what would have run."""
    found: list[tuple[str, str]] = []

    def note(how: str) -> Any:
        def noted(arguments: Namespace, plan: Any) -> None:
            found.append((how, arguments.devices))

        return noted

    monkeypatch.setattr(command, "_measured", note("one process"))
    monkeypatch.setattr(command, "_measured_over_ranks", note("ranks"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.mark.parametrize(
    ("devices", "options", "expected"),
    [
        ("cuda:0,cuda:1", [], ("ranks", "rank0/cuda:0,rank1/cuda:1")),
        ("cuda:3,cuda:1", [], ("ranks", "rank0/cuda:3,rank1/cuda:1")),
        ("cuda:0,cuda:1", ["--one-process"], ("one process", "cuda:0,cuda:1")),
        ("cuda:0/0,cuda:0/1", [], ("one process", "cuda:0/0,cuda:0/1")),
        ("cpu:0,cuda:1", [], ("one process", "cpu:0,cuda:1")),
        ("cpu:0,cpu:1", [], ("one process", "cpu:0,cpu:1")),
        ("rank0/cuda:0,rank0/cuda:1", [], ("ranks", "rank0/cuda:0,rank0/cuda:1")),
    ],
)
def test_every_gpu_has_a_process(
    devices: str,
    options: list[str],
    expected: tuple[str, str],
    plan_file: str,
    ran: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", plan_file, "dlplacer.models:mlp", "--batch-size", "4", "--devices", devices, *options]) == 0
    assert ran == [expected]
    told = "one process per GPU (rank" in capsys.readouterr().err
    assert told == (expected[0] == "ranks" and "rank" not in devices)


def test_parts_of_a_gpu_share_its_process() -> None:
    names = ["cuda:0/0", "cuda:1", "cuda:0/1?copies=forced"]
    assert rank_per_gpu(names) == ["rank0/cuda:0/0", "rank1/cuda:1", "rank0/cuda:0/1?copies=forced"]


def test_under_a_launcher_ranks_are_as_they_were_named(
    plan_file: str, ran: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    options = ["--batch-size", "4", "--devices", "cuda:0,cuda:1"]
    assert main(["run", plan_file, "dlplacer.models:mlp", *options]) == 0
    assert ran == [("ranks", "cuda:0,cuda:1")]
