"""Commands that time ops on cores: profile once and plan other models with its times; ``--split``."""

import json
from pathlib import Path

import pytest

from dlplacer.cli.main import main


def test_profiled_times_serve_another_batch_of_the_same_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "core.json"
    profile = ["profile", "dlplacer.models:mlp", "--device", "cpu:0", "--steps", "2", "--warmup", "1"]
    assert main([*profile, "--calibration", str(path)]) == 0
    content = json.loads(path.read_text())
    assert content["device_type"] == "cpu-core"
    assert {"torch", "hardware"} <= content["versions"].keys()
    assert main([*profile, "--calibration", str(path), "--batch-size", "3"]) == 0
    assert len(json.loads(path.read_text())["ops"]) > len(content["ops"])
    capsys.readouterr()
    solve = ["solve", "dlplacer.models:mlp", "cpu-2core", "--method", "list", "--json", "--calibration", str(path)]
    assert main(solve) == 0
    captured = capsys.readouterr()
    assert "measured times for 25 of 25 ops" in captured.err
    assert json.loads(captured.out)["makespan_s"] > 0
    assert main([*solve, "--batch-size", "5"]) == 0
    assert "the rest by roofline" in capsys.readouterr().err


def test_split_is_chosen_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch, plan = ["--batch-size", "4"], str(tmp_path / "plan.json")
    solve = [
        "solve",
        "dlplacer.models:branches",
        "cpu-2core",
        *batch,
        "--split",
        "--method",
        "list",
        "--time-limit",
        "120",
        "--json",
    ]
    assert main([*solve, "-o", plan]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["splits"]
    assert all(name.startswith("split:") for name in found["splits"])
    assert found["makespan_s"] < found["without_splits"]["makespan_s"]
    recorded = json.loads(Path(plan).read_text())["problem"]["graph"]["capture"]["rewrites"]
    assert [name for name in recorded if name.startswith("split:")] == found["splits"]
