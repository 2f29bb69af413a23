"""Gradients that are the step's own inputs have memory of their own."""

from typing import Any

import pytest
import torch
from runtime.random_plans import placed_at_random
from torch import nn

from dlplacer.frontend import Job


class Pulled(torch.autograd.Function):
    """Passes its input on, and gives a weight what it saved as its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, saved: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(weight if saved is None else saved)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (saved,) = ctx.saved_tensors
        return gradients[0], saved, None


class Model(nn.Module):
    """Its weight is pulled towards zero, towards a constant, or by the input."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.fc, self.weight = by, nn.Linear(4, 4), nn.Parameter(torch.randn(2, 4))
        self.register_buffer("buffer", torch.randn(2, 4))
        self.constant = torch.randn(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        saved = {"weight": None, "buffer": self.buffer, "constant": self.constant, "input": x}[self.by]
        return Pulled.apply(self.fc(x), self.weight, saved)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("by", ["weight", "buffer", "constant", "input"])
def test_a_gradient_that_is_given_is_copied(by: str) -> None:
    torch.manual_seed(0)
    module = Model(by)
    job = Job(module, (torch.randn(2, 4),), (), lambda output: output.square().sum())
    given = [module.weight, module.buffer, module.constant, *job.args]
    kept = [tensor.detach().clone() for tensor in given]
    expected = kept[["weight", "buffer", "constant", "input"].index(by)]
    with placed_at_random(job, 1) as placed:
        for step in (placed.step, lambda x: placed(x).backward()):
            placed.zero_grad()
            for count in (1, 2):
                step(*job.args)
                assert torch.equal(module.weight.grad, count * expected)
            # The first tensor would have been its own gradient, and twice as large.
            assert all(torch.equal(now, before) for now, before in zip(given, kept, strict=True))
