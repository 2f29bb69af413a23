"""``dlplacer run --replicas``, and the same under torchrun."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.files import write_plan
from dlplacer.frontend import capture
from dlplacer.models import mlp

pytestmark = needs_two_cores


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ranks") / "plan.json"
    write_plan(path, random_plan(capture(mlp(batch_size=4)), 2, seed=1))
    return str(path)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=280)


def test_replicas_are_forked_and_reported_once(plan_file: str, tmp_path: Path) -> None:
    picture, trace = tmp_path / "run.svg", tmp_path / "run.json"
    options = ["--devices", "rank0/cpu:0,rank0/cpu:1", "--replicas", "2", "--steps", "1", "--warmup", "0", "--json"]
    options += ["--gantt", str(picture), "--trace", str(trace)]
    done = run("-m", "dlplacer", "run", plan_file, "dlplacer.models:mlp", "--batch-size", "4", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["replicas"], report["ranks"]) == (2, 2)
    assert report["max_abs_error"] < 1e-5
    assert report["full_batch_error"] < 1e-5
    devices = [f"rank{rank}/{name}" for rank in range(2) for name in ("d0", "d1", "network")]
    assert [use["device"] for use in report["use"]] == devices
    assert len(report["offenders"]) == 10
    assert done.stderr.count("wrote ") == 2
    assert picture.read_text().count("measured: ") == 1
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"{device} {what}" for device in devices for what in ("predicted", "measured")}


def test_under_torchrun_the_first_rank_reports(plan_file: str, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--devices", "rank0/cpu:0,rank1/cpu:1", "--steps", "1", "--warmup", "0"]
    options += ["--trace", str(tmp_path / "run.json")]
    done = run(*launcher, "-m", "dlplacer", "run", plan_file, "dlplacer.models:mlp", "--batch-size", "4", *options)
    assert done.returncode == 0, done.stderr
    for text in ("largest difference to one process", "busy, measured", "predicted worst"):
        assert done.stdout.count(text) == 1
    assert done.stderr.count("wrote ") == 1
    assert (tmp_path / "run.json").stat().st_size > 1000


def test_an_error_on_the_ranks_is_one_message(plan_file: str) -> None:
    options = ["--devices", "rank0/cpu:0,rank0/cpu:99", "--replicas", "2"]
    done = run("-m", "dlplacer", "run", plan_file, "dlplacer.models:mlp", "--batch-size", "4", *options)
    assert done.returncode == 2
    assert "device 'cpu:99' needs 100 cores" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
