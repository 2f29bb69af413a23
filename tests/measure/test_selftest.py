"""What the self-test finds on good devices, and on broken ones."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend.torch.small_models import build
from runtime.host_streams import HostCudaDevice, HostStreams
from runtime.random_plans import needs_two_cores

from dlplacer.cli.main import main
from dlplacer.measure.selftest import Check, Selftest, selftest
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.devices.open import KINDS
from dlplacer.runtime.executor.backends import BACKENDS

# Torch's compilers use what torch itself deprecates.
pytestmark = [needs_two_cores, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
CPUS = ["cpu:0", "cpu:1"]
SMALL = {"branches": lambda: build("branches"), "recurrent": lambda: build("recurrent")}


def test_good_devices_pass() -> None:
    linear = {"linear": lambda: build("linear")}
    done = selftest({**linear, "recurrent": SMALL["recurrent"]}, linear, CPUS, repeats=2)
    assert done.passed
    assert done.devices == tuple(CPUS)
    names = [(check.name, check.subject) for check in done.checks]
    assert names == [
        ("numbers", "linear against plain PyTorch"),
        ("numbers", "linear against one device"),
        ("races", "linear, 2 runs with pauses"),
        ("numbers", "recurrent against plain PyTorch"),
        ("numbers", "recurrent against one device"),
        ("races", "recurrent, 2 runs with pauses"),
        ("numbers", "linear, inductor"),
        ("link", "cpu:0 to cpu:1"),
        ("link", "cpu:0 to cpu:1"),
        ("issue", "cpu-core"),
        ("step", "linear, plain PyTorch"),
        ("step", "linear, eager, on cpu:0"),
        ("step", "linear, eager, on cpu:0, cpu:1"),
        ("step", "linear, inductor, on cpu:0"),
        ("step", "linear, inductor, on cpu:0, cpu:1"),
    ]
    assert all(check.value > 0 for check in done.checks if check.name == "step" and not check.note)
    report = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert report["passed"] is True
    assert report["environment"]["torch"] == str(torch.__version__)
    assert [device["name"] for device in report["environment"]["devices"]] == CPUS
    assert all(device["hardware"] for device in report["environment"]["devices"])
    assert [node["id"] for node in report["topology"]["nodes"]] == CPUS


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what compiled segments have no part in."""
    monkeypatch.delitem(BACKENDS, "inductor")


@pytest.fixture
def simulated(without_compiler: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two GPUs in the host's memory; what is enqueued on them."""
    streams = HostStreams()

    def opened(index: int, part: int | None = None, copies: str = "free") -> HostCudaDevice:
        return HostCudaDevice(index, streams, part, copies)

    kind = replace(KINDS["cuda"], open=opened, versions=lambda index: {"hardware": "Simulated", "cuda": "13.0"})
    monkeypatch.setitem(KINDS, "cuda", kind)
    return streams.log


def test_the_whole_of_it_on_simulated_gpus(
    simulated: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["selftest", "--devices", "cuda:0,cuda:1", "--no-steps", "--repeats", "1", "-o", str(report)]) == 0
    assert "wrote" in capsys.readouterr().err
    found = json.loads(report.read_text())
    checks = {(check["name"], check["subject"]): check for check in found["checks"]}
    assert checks["races", "branches, 1 runs with pauses"]["value"] == 0
    assert checks["numbers", "branches, cuda_graph"]["value"] <= 1e-4
    assert checks["numbers", "branches, cuda_graph"]["note"] == ""
    assert checks["issue", "Host"]["value"] > 0
    assert {"capture", "replay"} <= set(simulated)
    assert found["environment"]["devices"][1] == {
        "name": "cuda:1",
        "type": "Host",
        "hardware": "Simulated",
        "cuda": "13.0",
    }


def noisy(amount: Callable[[], float]) -> Callable[..., Any]:
    """A `CpuDevice.receive` that adds something to what it receives."""

    def receive(self: CpuDevice, tensor: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            return tensor + amount()
        return tensor

    return receive


@pytest.mark.usefixtures("without_compiler")
def test_links_that_change_what_they_carry_are_found_and_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CpuDevice, "receive", noisy(lambda: 0.1))
    report = tmp_path / "report.json"
    words = ["selftest", "--devices", "cpu:0,cpu:1", "--no-steps", "--repeats", "1", "-o", str(report)]
    assert main(words) == 5
    assert "passed   no" in capsys.readouterr().out
    checks = json.loads(report.read_text())["checks"]
    assert {check["name"] for check in checks if not check["passed"]} == {"numbers"}


# Every run differs from the first by less than any tolerance, but not by nothing.
@pytest.mark.usefixtures("without_compiler")
def test_runs_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [0]

    def tiny() -> float:
        taken[0] += 1
        return 1e-6 * (taken[0] % 97)

    monkeypatch.setattr(CpuDevice, "receive", noisy(tiny))
    done = selftest({"branches": SMALL["branches"]}, {}, CPUS, repeats=2)
    assert "races" in {check.name for check in done.checks if not check.passed}


def test_what_exceeds_its_limit_or_is_no_number_fails() -> None:
    assert not Check("numbers", "x", 0.2, 0.15, "").passed
    assert Check("numbers", "x", 0.15, 0.15, "").passed
    assert Check("link", "x", 5.0, None, "").passed
    assert not Check("numbers", "x", float("nan"), 1e-4, "").passed
    assert Check("numbers", "x", float("nan"), 1e-4, "").to_dict()["value"] == "nan"
    assert Selftest((), (Check("link", "x", 5.0, None, ""),)).passed
