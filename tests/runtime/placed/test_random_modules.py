"""Random modules under random plans: what writes in place, through views and into buffers gives the same numbers."""

from collections.abc import Sequence

import pytest
import torch
from runtime.placed.random_modules import ROWS, WIDTH, RandomModule
from runtime.random_plans import needs_two_cores, placed_at_random, plain_loss
from torch import nn
from torch.nn import functional

from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.runtime import PlacedModule

pytestmark = needs_two_cores

X, Y = (torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


def job_of(module: nn.Module) -> Job:
    return Job(module, (X,), (Y,), functional.mse_loss)


def noted(module: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    """Loss, gradients and buffers after a step, from which the parameters then go on."""
    trained = [parameter for parameter in module.parameters() if parameter.grad is not None]
    gradients = [parameter.grad.clone() for parameter in trained if parameter.grad is not None]
    with torch.no_grad():
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.sub_(gradient, alpha=0.01)
    module.zero_grad()
    return [loss.detach().clone(), *gradients, *(buffer.clone() for buffer in module.buffers())]


def trained(placed: PlacedModule, through_autograd: bool) -> list[torch.Tensor]:
    torch.manual_seed(7)
    found = []
    for number in range(3):
        loss = placed(X + number, Y) if through_autograd else placed.step(X + number, Y)
        if through_autograd:
            loss.backward()
        found += noted(placed, loss)
    return found


def same(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], **tolerance: float) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.allclose(one, other, equal_nan=True, **tolerance) for one, other in pairs)


HALVES = ("micro-batches:2",)
SLOW = [
    *((seed, (), drops) for seed in (*range(6, 15), 16) for drops in (False, True)),
    *((seed, HALVES, drops) for seed in range(6, 12) for drops in (False, True)),
]


# Without dropout against plain PyTorch; with it, and in micro-batches, one device against two, which is the same to the
# last bit: the same kernels run on the same numbers.
@pytest.mark.parametrize(
    ("seed", "rewrites", "drops"),
    [(0, (), False), (3, HALVES, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_random_module_computes_the_same_under_any_plan(seed: int, rewrites: Sequence[str], drops: bool) -> None:
    def job() -> Job:
        return job_of(RandomModule(seed, drops=drops))

    graph = capture_job(job(), [*default_rewrites(), *rewrites]).graph
    with placed_at_random(job(), 1, graph=graph) as placed:
        expected = trained(placed, through_autograd=False)
    for through_autograd in (True, False):
        with placed_at_random(job(), 2, seed + through_autograd, graph) as placed:
            assert same(trained(placed, through_autograd), expected, rtol=0.0, atol=0.0), through_autograd
    if not drops and not rewrites:
        plain, found = RandomModule(seed, drops=False), []
        for number in range(3):
            loss = plain_loss(Job(plain, (X + number,), (Y,), functional.mse_loss), plain)
            loss.backward()  # type: ignore[no-untyped-call]
            found += noted(plain, loss)
        assert same(expected, found, rtol=1e-5, atol=1e-6)
