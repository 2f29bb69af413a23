"""Autocast, loss scaling and gradient accumulation, as in plain PyTorch."""

import copy
from dataclasses import replace

import pytest
import torch
from runtime.random_plans import needs_two_cores, placed_at_random, random_plan
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.frontend import Job, capture
from dlplacer.runtime import apply

pytestmark = needs_two_cores


def job_of(autocast: str | None) -> Job:
    """Two branches of linear layers and a norm."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 5))
    return Job(module, (torch.randn(8, 16),), (torch.randint(5, (8,)),), functional.cross_entropy, autocast=autocast)


def plain_loss(job: Job, module: nn.Module) -> torch.Tensor:
    dtype = getattr(torch, job.autocast or "bfloat16")
    with torch.autocast("cpu", dtype=dtype, enabled=job.autocast is not None):
        loss: torch.Tensor = functional.cross_entropy(module(*job.args), *job.targets)
    return loss


# Scaling multiplies by a power of two; a step whose gradients overflow is left out, and the scale is halved.
@pytest.mark.parametrize("scale", [2.0**8, 2.0**40])
def test_half_precision_trains_with_a_gradient_scaler(scale: float) -> None:
    job = job_of("float16")
    plain = copy.deepcopy(job.module)
    ours, theirs = (torch.amp.GradScaler("cpu", init_scale=scale) for _ in range(2))
    with placed_at_random(job) as placed:
        mine, other = (torch.optim.SGD(module.parameters(), lr=0.1) for module in (placed, plain))
        for _ in range(4):
            for optimizer in (mine, other):
                optimizer.zero_grad()
            ours.scale(placed(*job.args, *job.targets)).backward()
            theirs.scale(plain_loss(job, plain)).backward()
            for scaler, optimizer in ((ours, mine), (theirs, other)):
                scaler.step(optimizer)
                scaler.update()
            assert ours.get_scale() == theirs.get_scale()
        for one, two in zip(placed.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, two, atol=2e-3, rtol=0)
    assert (ours.get_scale() < scale) == (scale > 2.0**20)


def test_updates_inside_a_half_precision_step_are_refused() -> None:
    job = replace(job_of("float16"), optimizer="sgd")
    with pytest.raises(InputError, match="float16 gradients need a GradScaler, which an update inside the step lacks"):
        apply(job, random_plan(capture(job)), ["cpu:0", "cpu:1"])


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_gradients_accumulate_over_steps_of_any_kind(autocast: str | None) -> None:
    job = job_of(autocast)
    plain = copy.deepcopy(job.module)
    with placed_at_random(job) as placed:
        placed.step(*job.args, *job.targets)
        (placed(*job.args, *job.targets) / 2).backward()
        placed.step(*job.args, *job.targets)
        for factor in (1, 2, 1):
            (plain_loss(job, plain) / factor).backward()
        for one, two in zip(placed.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, atol=1e-6 if autocast is None else 2e-2, rtol=0)
