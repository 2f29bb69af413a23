"""``dlplacer run --replicas``, and the same under torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from report.page.reading import ReadPage
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer import load_topology, place
from dlplacer.cli.main import main
from dlplacer.frontend import capture
from dlplacer.models import mlp

pytestmark = needs_two_cores


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ranks") / "plan.json"
    random_plan(capture(mlp(batch_size=4)), 2, seed=1).save(path)
    return str(path)


def test_replicas_are_started_and_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    picture, whole = tmp_path / "run.svg", tmp_path / "whole.json"
    random_plan(capture(mlp(batch_size=4)), 1).save(whole)
    options = ["--devices", "rank0/cpu:0", "--replicas", "2", "--steps", "1", "--warmup", "0", "--json"]
    page = tmp_path / "run.html"
    options += ["--gantt", str(picture), "--html", str(page)]
    assert main(["run", str(whole), "dlplacer.models:mlp", "--batch-size", "4", *options]) == 0
    told = capfd.readouterr()
    report = json.loads(told.out)
    assert (report["replicas"], report["ranks"]) == (2, 2)
    assert report["max_abs_error"] < 1e-5
    devices = ["d0", "network"]  # of the first replica
    assert told.err.count("wrote ") == 2
    rows = ReadPage(page.read_text()).data["schedules"]
    assert [schedule["devices"]["name"] for schedule in rows] == [devices, devices]
    assert picture.read_text().count("measured: ") == 1


def test_a_rank_whose_device_is_unused_waits_for_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph, plan = capture(mlp(batch_size=4)), tmp_path / "plan.json"
    graph = replace(graph, ops=tuple(replace(op, time_s=1e-5) for op in graph.ops))
    place(graph, load_topology("cpu-2core"), method="single").plan.save(plan)
    options = ["--devices", "rank0/cpu:0,rank1/cpu:1", "--steps", "1", "--batch-size", "4", "--json"]
    assert main(["run", str(plan), "dlplacer.models:mlp", *options]) == 0
    assert json.loads(capfd.readouterr().out)["max_abs_error"] == 0


# What has started the ranks is killed while they load torch, capture, or run: they must not wait for its store.
@pytest.mark.parametrize(
    ("launcher", "after_s"),
    [(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], 0.2), ([], 2.0)],
)
def test_ranks_end_with_what_started_them(plan_file: str, launcher: list[str], after_s: float) -> None:
    started, ranks = _started(plan_file, launcher)
    time.sleep(after_s)
    started.kill()
    started.wait()
    assert _left(ranks, 10.0) == []


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_an_interrupt_or_a_killed_rank_ends_the_command(plan_file: str, is_interrupted: bool) -> None:
    started, ranks = _started(plan_file, [])
    time.sleep(2.0)
    if is_interrupted:
        started.send_signal(signal.SIGINT)
    else:
        os.kill(ranks[1], signal.SIGKILL)
    assert started.wait(30) == (128 + signal.SIGINT if is_interrupted else 1)
    assert _left(ranks, 10.0) == []


def _started(plan_file: str, launcher: list[str]) -> tuple["subprocess.Popen[bytes]", list[int]]:
    """A command that runs for long over two ranks, and the process ids of these."""
    options = ["--devices", "rank0/cpu:0,rank1/cpu:1", "--steps", "100000", "--batch-size", "4", "--timeout", "20s"]
    command = [sys.executable, *launcher, "-m", "dlplacer", "run", plan_file, "dlplacer.models:mlp", *options]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return started, _ranks_of(started.pid, 60.0)
    except BaseException:
        started.kill()
        raise


def _left(ranks: list[int], seconds: float) -> list[int]:
    """Ranks that still run after some time; they are killed."""
    until = time.monotonic() + seconds
    while any(map(_runs, ranks)) and time.monotonic() < until:
        time.sleep(0.1)
    left = [rank for rank in ranks if _runs(rank)]
    for rank in left:
        os.kill(rank, signal.SIGKILL)
    return left


def _ranks_of(launcher: int, seconds: float) -> list[int]:
    """The processes that a launcher has started, once there are two."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
        if len(children.split()) == 2:
            return [int(child) for child in children.split()]
        time.sleep(0.02)
    raise AssertionError("torchrun has started no ranks")


def _runs(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_an_error_on_the_ranks_is_the_commands(plan_file: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--devices", "rank0/cpu:0,rank0/cpu:9999", "--replicas", "2"]
    assert main(["run", plan_file, "dlplacer.models:mlp", "--batch-size", "4", *options]) == 2
    told = capfd.readouterr()
    assert "device 'cpu:9999' needs 10000 cores" in told.err
    assert "Traceback" not in told.err
    assert told.out == ""
