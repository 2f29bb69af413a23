"""Registered tensors that a step reaches in ways of its own, and trained tensors that are not registered."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.torch.op_by_op import require_plain_step
from torch import nn
from torch.nn.functional import mse_loss

from dlplacer.core.errors import CaptureError
from dlplacer.frontend import Job, capture

Tensor = torch.Tensor


class Scaled(nn.Module):
    """A linear layer, its output scaled by a parameter that it reaches through what it holds; counts in a buffer."""

    def __init__(
        self,
        hold: Callable[["Scaled"], Any] = lambda module: [module.scale],
        take: Callable[[Any], Tensor] = lambda held: held[0],
    ) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.rand(3))
        self.register_buffer("seen", torch.ones(3))
        self.held = hold(self)
        self.take = take

    def forward(self, x: Tensor) -> Tensor:
        self.seen.mul_(0.5).add_(x.mean().detach())
        return self.fc(x) * self.take(self.held)


class Trainer:
    """Keeps a module, and has its loss as a method and as what calling it returns."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.named = module, dict(module.named_parameters())

    @property
    def weight(self) -> Tensor:
        return self.named["fc.weight"]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return penalised(output, target, self.weight)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return penalised(output, target, self.module.fc.weight)


class LossModule(nn.Module):
    """A loss that is a module, has the job's module inside, and keeps a centre of its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss = penalised(output - self.centre, target, self.module.fc.weight)
        self.centre.mul_(0.9).add_(output.detach().mean(0))
        return loss + self.centre.sum()


def penalised(output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The error, and the weight's decay."""
    return mse_loss(output, target) + weight.square().sum()


HELD: dict[str, tuple[Callable[[Scaled], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda module: (module.scale,), lambda held: held[0]),
    "dict": (lambda module: {"scale": module.scale}, lambda held: held["scale"]),
    "module in a list": (lambda module: [module], lambda held: held[0].scale),
    "partial": (lambda module: functools.partial(torch.mul, module.scale), lambda held: held(1)),
    "closure": (lambda module: lambda: module.scale, lambda held: held()),
    "weak reference": (lambda module: weakref.ref(module.scale), lambda held: held()),
}
"""What a module keeps, and how it comes by its parameter through that."""

LOSSES: dict[str, Callable[[Scaled], Callable[..., Tensor]]] = {
    "closure": lambda module: lambda output, target: penalised(output, target, module.fc.weight),
    "partial": lambda module: functools.partial(penalised, weight=module.fc.weight),
    "method": lambda module: Trainer(module).loss,
    "callable object": Trainer,
    "module": LossModule,
    "buffer that forward writes": lambda module: (
        lambda output, target: ((output - target) * module.seen).square().mean()
    ),
}
"""How a loss reaches a tensor of the module that it is made for."""


def training(module: nn.Module, loss: Callable[..., Tensor] = mse_loss) -> Job:
    """A job with fixed values."""
    draw = torch.Generator().manual_seed(1)
    return Job(module, (torch.randn(4, 6, generator=draw),), (torch.randn(4, 3, generator=draw),), loss)


@pytest.mark.parametrize("way", HELD)
def test_a_parameter_that_forward_reaches_through_what_it_holds_has_its_gradient(way: str) -> None:
    assert require_plain_step(training(Scaled(*HELD[way]))).gradients["scale"].all()


@pytest.mark.parametrize("way", LOSSES)
def test_a_tensor_that_the_loss_reaches_is_that_of_the_module(way: str) -> None:
    module = Scaled()
    assert require_plain_step(training(module, LOSSES[way](module))).gradients["fc.weight"].all()


@pytest.mark.parametrize("outside", [nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)], ids=type)
def test_a_trained_tensor_that_is_not_registered_is_refused_with_its_line(outside: Tensor) -> None:
    with pytest.raises(
        CaptureError, match=r"not registered.*test_reached_tensors\.py:\d+.*weight.square.*attribute of the"
    ):
        capture(
            training(Scaled(), lambda output, target: mse_loss(output, target) + penalised(output, target, outside))
        )
