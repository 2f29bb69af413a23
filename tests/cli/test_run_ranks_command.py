"""``dlplacer run --replicas``, and the same under torchrun."""

import json
import subprocess
import sys

import pytest
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.files import write_plan
from dlplacer.frontend import capture
from dlplacer.models import mlp

pytestmark = [needs_two_cores, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ranks") / "plan.json"
    write_plan(path, random_plan(capture(mlp(batch_size=4)), 2, seed=1))
    return str(path)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=150)


def test_replicas_are_forked_and_reported_once(plan_file: str) -> None:
    options = ["--devices", "rank0/cpu:0,rank0/cpu:1", "--replicas", "2", "--steps", "1", "--warmup", "0", "--json"]
    done = run("-m", "dlplacer", "run", plan_file, "dlplacer.models:mlp", "--batch-size", "4", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["replicas"], report["ranks"]) == (2, 2)
    assert report["max_abs_error"] < 1e-5
    assert report["full_batch_error"] < 1e-5


def test_under_torchrun_the_first_rank_reports(plan_file: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--devices", "rank0/cpu:0,rank1/cpu:1", "--steps", "1", "--warmup", "0"]
    done = run(*launcher, "-m", "dlplacer", "run", plan_file, "dlplacer.models:mlp", "--batch-size", "4", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("largest difference to one process") == 1


def test_an_error_on_the_ranks_is_one_message(plan_file: str) -> None:
    options = ["--devices", "rank0/cpu:0,rank0/cpu:99", "--replicas", "2"]
    done = run("-m", "dlplacer", "run", plan_file, "dlplacer.models:mlp", "--batch-size", "4", *options)
    assert done.returncode == 2
    assert "device 'cpu:99' needs 100 cores" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
