"""``--granularity`` on the command line: capture, solve, check, run."""

import json
from pathlib import Path

import pytest
from runtime.random_plans import needs_two_cores

from dlplacer.cli.main import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@needs_two_cores
@pytest.mark.parametrize("granularity", ["module", pytest.param("fused", marks=pytest.mark.slow)])
def test_solve_check_and_run(granularity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.json")
    job = ("dlplacer.models:branches", "cpu-2core", "--batch-size", "4", "--granularity", granularity)
    solved = printed(capsys, "solve", *job, "--time-limit", "1", "-o", plan)
    assert solved["status"] in ("optimal", "feasible")
    assert main(["check", plan]) == 0
    capsys.readouterr()
    report = printed(capsys, "run", plan, "--devices", "cpu:0,cpu:1", "--steps", "1", "--warmup", "0")
    assert report["max_abs_error"] < 1e-6  # type: ignore[operator]
