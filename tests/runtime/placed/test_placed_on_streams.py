"""Whole modules on devices with streams, without a GPU: torch computes at once, what is enqueued is written down."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from frontend.torch.small_models import build
from runtime.random_plans import plain_loss, random_plan

from dlplacer.core.errors import RunError
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.runtime.devices.cuda import CudaDevice
from dlplacer.runtime.devices.jitter import DelayedDevice
from dlplacer.runtime.placed.placed_module import PlacedModule

pytestmark = pytest.mark.timeout(120)


class Event:
    """An event that has happened."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def synchronize(self) -> None:
        self.log.append("sync")

    def record(self, stream: "Stream") -> None:
        self.log.append("mark")

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        return 0.0


class Stream:
    """A stream that has done everything."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def record_event(self) -> Event:
        self.log.append("record")
        return Event(self.log)

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)
        self.log.append("wait")

    def synchronize(self) -> None:
        self.log.append("end")


class HostStreams:
    """A `StreamBackend` in the host's memory."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def device_count(self) -> int:
        return 2

    def device_name(self, index: int) -> str:
        return "Host"

    def set_device(self, index: int) -> None:
        pass

    def stream(self, index: int) -> Stream:
        return Stream(self.log)

    def activate(self, stream: Stream) -> None:
        pass

    def copy(self, tensor: torch.Tensor, device: torch.device, stream: Stream) -> torch.Tensor:
        self.log.append("copy")
        return tensor.clone(memory_format=torch.preserve_format)

    def protect(self, tensor: torch.Tensor, stream: Stream) -> None:
        assert isinstance(tensor, torch.Tensor)
        self.log.append("hold")

    def synchronize(self, index: int) -> None:
        pass

    def event(self, timed: bool) -> Event:
        return Event(self.log)

    def pause(self, stream: Stream, pause_s: float) -> None:
        self.log.append("pause")


class HostCudaDevice(CudaDevice):
    """A `CudaDevice` whose tensors are in the host's memory."""

    def __init__(self, index: int, backend: Any, part: int, copies: str) -> None:
        super().__init__(index, backend, part, copies)
        self.torch_device = torch.device("cpu")

    def _prepare(self) -> None:
        super()._prepare()
        torch.get_num_threads()
        torch.set_num_threads(1)


@contextmanager
def placed_on_streams(
    job: Job, copies: str, seed: int, delayed: bool = False
) -> Iterator[tuple[PlacedModule, list[str]]]:
    streams = HostStreams()
    captured = capture_job(job, default_rewrites())
    plan = random_plan(captured.graph, 2, seed)
    devices: list[Any] = [HostCudaDevice(0, streams, part, copies) for part in range(2)]
    if delayed:
        devices = [DelayedDevice(device, 1e-3, seed) for device in devices]
    placed = PlacedModule(job, plan, captured, dict(zip(("d0", "d1"), devices, strict=True)))
    streams.log.clear()
    try:
        yield placed, streams.log
    finally:
        placed.close()


@pytest.mark.parametrize(("name", "copies"), [("branches", "free"), ("branches", "forced"), ("recurrent", "forced")])
def test_training_equals_plain_pytorch(name: str, copies: str) -> None:
    job, plain = build(name), build(name)
    expected = plain_loss(plain, plain.module)
    expected.backward()
    with placed_on_streams(job, copies, seed=1) as (placed, log):
        assert torch.equal(placed.step(*job.args, *job.targets), expected.detach())
        joint = list(log)
        first = {key: tensor.grad.clone() for key, tensor in placed.named_parameters() if tensor.grad is not None}
        placed.zero_grad(set_to_none=True)
        log.clear()
        placed(*job.args, *job.targets).backward()
        for key, tensor in plain.module.named_parameters():
            torch.testing.assert_close(first[key], tensor.grad)
            assert torch.equal(first[key], placed.get_parameter(key).grad)
    assert {"record", "wait", "hold", "end"} <= set(joint)
    assert ("copy" in joint) == (copies == "forced")
    assert log.count("end") == 4


def test_pauses_and_recording_change_nothing() -> None:
    job, plain = build("branches"), build("branches")
    with placed_on_streams(job, "forced", seed=1, delayed=True) as (placed, log):
        placed.records = True
        assert torch.equal(placed.step(*job.args, *job.targets), plain_loss(plain, plain.module).detach())
        for name, timeline in placed.timelines.items():
            assert [span.op for span in timeline.spans(placed.devices[name])] == list(placed.plan.order[name])
    assert {"pause", "mark", "copy"} <= set(log)


@pytest.mark.parametrize(
    ("broken", "action"), [("copy", "COPY .* -> d[01] ON copy:d[01]"), ("protect", "HOLD .* FOR .*")]
)
def test_an_action_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, broken: str, action: str) -> None:
    job, plain = build("branches"), build("branches")
    with placed_on_streams(job, "forced", seed=1) as (placed, _):
        with monkeypatch.context() as patched:
            patched.setattr(HostStreams, broken, lambda *args: 1 / 0)
            with pytest.raises(RunError, match=f"{action} failed on cuda:0/[01]: division by zero"):
                placed.step(*job.args, *job.targets)
        assert torch.equal(placed.step(*job.args, *job.targets), plain_loss(plain, plain.module).detach())
