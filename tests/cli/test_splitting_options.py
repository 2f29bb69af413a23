"""``--split`` and ``--micro-batches``."""

import json
from pathlib import Path

import pytest

from dlplacer.cli.main import main

MODEL = "dlplacer.models:branches"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_split_is_chosen_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch, plan = ["--batch-size", "4"], str(tmp_path / "plan.json")
    solve = ["solve", MODEL, "cpu-2core", *batch, "--split", "--method", "list", "--time-limit", "120", "--json"]
    found = json.loads(told(capsys, *solve, "-o", plan))
    assert found["splits"]
    assert all(name.startswith("split:") for name in found["splits"])
    assert found["makespan_s"] < found["without_splits"]["makespan_s"]
    recorded = json.loads(Path(plan).read_text())["problem"]["graph"]["capture"]["rewrites"]
    assert [name for name in recorded if name.startswith("split:")] == found["splits"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "one"], "--split is 'one'; give auto or a number of parts from 2 on"),
        (["--split", "1"], "--split is '1'; give auto or a number of parts from 2 on"),
        (["--split", "--colocate-backward"], "--colocate-backward does not go together with --split"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["solve", MODEL, "cpu-2core", *options]) == 2
    assert message in capsys.readouterr().err


def test_micro_batches_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    solve = ["solve", "dlplacer.models:mlp", "cpu-2core", "--method", "list", "--time-limit", "120"]
    told(capsys, *solve, "--micro-batches", "2", "-o", str(plan))
    rewrites = json.loads(plan.read_text())["problem"]["graph"]["capture"]["rewrites"]
    assert rewrites[-1] == "micro-batches:2"
