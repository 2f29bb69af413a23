"""Whole modules on devices with streams, without a GPU: torch computes at once, what is enqueued is written down."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from frontend.torch.small_models import build
from runtime.host_streams import HostCudaDevice, HostEvent, HostStreams
from runtime.random_plans import plain_loss, random_plan

from dlplacer.core.errors import RunError
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.runtime.placed.placed_module import PlacedModule

pytestmark = pytest.mark.timeout(120)


@contextmanager
def placed_on_streams(
    job: Job, copies: str, seed: int, segments: str = "eager"
) -> Iterator[tuple[PlacedModule, list[str]]]:
    streams = HostStreams()
    captured = capture_job(job, default_rewrites())
    plan = random_plan(captured.graph, 2, seed)
    devices: list[Any] = [HostCudaDevice(0, streams, part, copies) for part in range(2)]
    placed = PlacedModule(job, plan, captured, dict(zip(("d0", "d1"), devices, strict=True)), segments=segments)
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
    assert {"record", "wait", "hold"} <= set(joint)
    assert ("copy" in joint) == (copies == "forced")
    # Neither a device nor a stream nor an event is waited for inside a step.
    assert not {"device", "end", "sync"} & {*joint, *log}


# The host is two steps ahead at most: what fails on a device is reported soon.
def test_the_host_waits_for_the_step_before_the_last_one() -> None:
    job = build("branches")
    with placed_on_streams(job, "free", seed=1) as (placed, log):
        for number in range(4):
            placed.step(*job.args, *job.targets)
            assert log.count("sync") == 2 * max(0, number - 1), number


def test_what_fails_on_a_device_is_reported_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    job = build("branches")
    with placed_on_streams(job, "free", seed=1) as (placed, _):
        placed.step(*job.args, *job.targets)

        def failed(event: Any) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        monkeypatch.setattr(HostEvent, "synchronize", failed)
        placed.step(*job.args, *job.targets)
        with pytest.raises(
            RunError, match="run 1 of the program failed on cuda:0/0 after its ops were issued: CUDA er"
        ):
            placed.step(*job.args, *job.targets)
