"""Segments that TorchInductor compiles train as plain PyTorch does, to rounding."""

from contextlib import closing

import pytest
import torch
from frontend.torch.small_models import build
from runtime.random_plans import plain_loss

import dlplacer as dp

# TorchInductor loads parts of torch that warn of each other.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize("name", ["attention", "branches", "convolutions", "linear", "recurrent"])
def test_compiled_segments_train_as_plain_pytorch_does(name: str) -> None:
    torch.manual_seed(0)
    job, plain = build(name), build(name)
    plain.module.load_state_dict(job.module.state_dict())
    plan = dp.place(job, "cpu-2core", method="heft")
    with closing(dp.apply(job, plan, "cpu:0,cpu:1", segments="inductor")) as placed:
        for _ in range(2):
            loss = placed.step(*job.args, *job.targets)
            expected = plain_loss(plain, plain.module)
            expected.backward()
            torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
        theirs = dict(plain.module.named_parameters())
        for key, parameter in placed.named_parameters():
            if theirs[key].grad is not None:
                torch.testing.assert_close(parameter.grad, theirs[key].grad, rtol=1e-3, atol=1e-5)
