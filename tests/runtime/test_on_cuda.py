"""Plans on a real GPU, against plain PyTorch there. Skipped where torch sees none."""

import copy
from dataclasses import replace

import pytest
import torch
from runtime.random_plans import random_plan

import dlplacer as dp
from dlplacer.models import branches

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

TOLERANCE = 1e-5
"""Other kernels may be chosen for a split convolution backward, so sums are taken in another order in float32."""


@pytest.fixture(autouse=True)
def exact_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("devices", [["cuda:0"], ["cpu:0", "cuda:0"], ["cuda:0", "cpu:0"]], ids="+".join)
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
