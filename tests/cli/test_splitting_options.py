"""``--split``, ``--times`` and ``--splits-of``."""

import json
from pathlib import Path

import pytest

from dlplacer.cli.main import main

MODEL = "dlplacer.models:branches"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_split_is_chosen_recorded_and_applied_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, again = str(tmp_path / "graph.json"), str(tmp_path / "again.json")
    batch = ["--batch-size", "4"]
    plan = str(tmp_path / "plan.json")
    solve = ["solve", MODEL, "cpu-2core", *batch, "--split", "--method", "list", "--time-limit", "120", "--json"]
    found = json.loads(told(capsys, *solve, "-o", plan))
    assert found["splits"]
    assert all(name.startswith("split:") for name in found["splits"])
    assert found["makespan_s"] < found["without_splits"]["makespan_s"]
    told(capsys, "profile", MODEL, *batch, "--device", "cpu:0", "--splits-of", plan, "--steps", "1", "-o", graph)
    told(capsys, "profile", MODEL, *batch, "--device", "cpu:0", "--splits-of", graph, "--steps", "1", "-o", again)
    recorded = json.loads(Path(again).read_text())["capture"]["rewrites"]
    assert [name for name in recorded if name.startswith("split:")] == found["splits"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "one"], "--split is 'one'; give auto or a number of parts from 2 on"),
        (["--split", "1"], "--split is '1'; give auto or a number of parts from 2 on"),
        (["--split", "--colocate-backward"], "--split and --colocate-backward exclude each other"),
        (["--split", "--splits-of", "x.json"], "--split chooses splits and --splits-of takes those of a file"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["solve", MODEL, "cpu-2core", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_graph_file_cannot_be_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "inception_v3-train", "cpu-2core", "--split"]) == 2
    assert (
        "needs the model as module:callable, to rewrite its step; 'inception_v3-train' is a file"
        in capsys.readouterr().err
    )


def test_a_file_without_splits_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = str(tmp_path / "graph.json")
    told(capsys, "capture", MODEL, "--batch-size", "4", "-o", graph)
    arguments = ["profile", MODEL, "--batch-size", "4", "--device", "cpu:0", "--splits-of", graph]
    assert main(arguments) == 2
    assert "records no splits; write it with --split" in capsys.readouterr().err


def test_micro_batches_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    solve = ["solve", "dlplacer.models:mlp", "cpu-2core", "--method", "list", "--time-limit", "120"]
    told(capsys, *solve, "--micro-batches", "2", "-o", str(plan))
    rewrites = json.loads(plan.read_text())["problem"]["graph"]["capture"]["rewrites"]
    assert rewrites[-1] == "micro-batches:2"


def test_micro_batches_of_batch_norm_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch-size", "4", "--micro-batches", "2", "--method", "list"]
    assert main(["solve", MODEL, "cpu-2core", *options]) == 0
    assert "batch norm sees one micro-batch at a time" in capsys.readouterr().err


def test_micro_batches_that_are_not_equal_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "dlplacer.models:mlp", "cpu-2core", "--batch-size", "4", "--micro-batches", "3"]) == 2
    assert "an input of shape [4, 64] cannot be cut into 3 equal parts" in capsys.readouterr().err
