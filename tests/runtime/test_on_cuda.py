"""Plans on a real GPU, against plain PyTorch there. Skipped where torch sees none."""

import copy
from dataclasses import replace

import pytest
import torch
from runtime.random_plans import random_plan

import dlplacer as dp
from dlplacer.measure.selftest import selftest
from dlplacer.models import branches

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

TOLERANCE = 1e-5
"""Other kernels may be chosen for a split convolution backward, so sums are taken in another order in float32."""


@pytest.fixture(autouse=True)
def exact_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


DEVICES = [
    ["cuda:0"],
    ["cpu:0", "cuda:0"],
    ["cuda:0", "cpu:0"],
    ["cuda:0/0", "cuda:0/1"],
    ["cuda:0/0?copies=forced", "cuda:0/1?copies=forced"],
    ["cuda:0/0", "cuda:0/1?copies=forced", "cpu:0"],
]
"""All of them on one GPU: logical devices have the threads, streams and events that several GPUs would have."""


@pytest.mark.parametrize("devices", DEVICES, ids="+".join)
@pytest.mark.parametrize("optimizer", [None, "momentum"])
def test_training_equals_plain_pytorch(devices: list[str], optimizer: str | None) -> None:
    job = replace(branches(batch_size=8), optimizer=optimizer)
    plain = copy.deepcopy(job.module).cuda()
    images, labels = job.args[0].cuda(), job.targets[0].cuda()
    placed = dp.apply(job, random_plan(dp.capture(job), len(devices), seed=1), devices)
    try:
        theirs = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
        ours = torch.optim.SGD(placed.parameters(), lr=0.01, momentum=0.9)
        for number in range(5):
            theirs.zero_grad()
            expected = torch.nn.functional.cross_entropy(plain(images), labels)
            expected.backward()
            theirs.step()
            ours.zero_grad()
            if optimizer is not None or number % 2:
                loss = placed.step(*job.args, *job.targets)
            else:
                loss = placed(*job.args, *job.targets)
                loss.backward()
            if optimizer is None:
                ours.step()
            assert float(loss) == pytest.approx(float(expected), abs=TOLERANCE)
        for mine, other in zip(placed.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.cpu(), other.cpu(), atol=TOLERANCE, rtol=0)
    finally:
        placed.close()


# Random pauses on threads and streams change the order in which work is enqueued and done, and must change no bit.
@pytest.mark.parametrize("copies", ["free", "forced"])
def test_there_are_no_races_between_streams(copies: str) -> None:
    names = [f"cuda:0/{part}?copies={copies}" for part in range(3)]
    done = selftest({"branches": lambda: branches(batch_size=8)}, {}, names, repeats=10)
    assert [check.subject for check in done.checks if not check.passed] == []


def test_memory_does_not_grow() -> None:
    job = branches(batch_size=8)
    placed = dp.apply(job, random_plan(dp.capture(job), 2, seed=1), ["cuda:0/0", "cuda:0/1?copies=forced"])
    try:
        for _ in range(20):
            placed.zero_grad(set_to_none=True)
            placed.step(*job.args, *job.targets)
        before = torch.cuda.memory_allocated()
        for _ in range(200):
            placed.zero_grad(set_to_none=True)
            placed.step(*job.args, *job.targets)
        assert torch.cuda.memory_allocated() <= before
    finally:
        placed.close()


def test_a_recorded_step_keeps_the_order_of_the_plan() -> None:
    job = branches(batch_size=8)
    placed = dp.apply(job, random_plan(dp.capture(job), 2, seed=1), ["cuda:0/0", "cuda:0/1"])
    try:
        placed.records = True
        placed.step(*job.args, *job.targets)
        for name, timeline in placed.timelines.items():
            spans = timeline.spans(placed.devices[name])
            assert [op for op, _, _ in spans] == list(placed.plan.order[name])
            assert all(end_s >= start_s for _, start_s, end_s in spans)
    finally:
        placed.close()
