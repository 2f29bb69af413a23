"""Python state that a step changes, and derivatives of its own: the numbers of plain PyTorch, or a refusal."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.torch.op_by_op import require_plain_step
from frontend.torch.small_models import Calls
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from dlplacer.core.errors import CaptureError
from dlplacer.frontend import Job, capture

Tensor = torch.Tensor


def training(forward: Callable[[Any, Tensor], Tensor], **attributes: Any) -> Job:
    """A job whose module calls a function with itself and x."""
    module = Calls(forward, fc=nn.Linear(6, 6), head=nn.Linear(6, 3))
    for name, value in attributes.items():
        setattr(module, name, value)
    return Job(module, (torch.randn(4, 6),), (torch.randn(4, 3),), mse_loss)


class Tripled(torch.autograd.Function):
    """The sine, with a derivative of 3."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


def counts(self: Any, x: Tensor) -> Tensor:
    self.step += 1
    return self.head(x) * min(1.0, self.step / 10)


def reads_the_last_step(self: Any, x: Tensor) -> Tensor:
    output = self.head(x)
    self.log.append(output.detach().mean())
    return output * sum(self.log)


def changes_what_it_made_first(self: Any, x: Tensor) -> Tensor:
    if self.kept is None:
        self.kept = torch.zeros(())
    self.kept += 1
    return self.head(x) * self.kept


def draws_in_python(self: Any, x: Tensor) -> Tensor:
    return self.head(x) * random.randint(1, 9)


def transforms_an_own_derivative(self: Any, x: Tensor) -> Tensor:
    return self.head(torch.func.grad(lambda inner: (Tripled.apply(inner) * inner).sum())(self.fc(x)))


def maps_an_own_derivative(self: Any, x: Tensor) -> Tensor:
    return self.head(torch.vmap(lambda inner: Tripled.apply(inner) * 2)(self.fc(x)))


def checkpoints_what_needs_no_gradient(self: Any, x: Tensor) -> Tensor:
    return self.head(checkpoint(self.fc, x, use_reentrant=True))


@pytest.mark.parametrize(
    ("forward", "attributes"),
    [
        (counts, {"step": 0}),
        (reads_the_last_step, {"log": []}),
        (changes_what_it_made_first, {"kept": None}),
        (draws_in_python, {}),
        (transforms_an_own_derivative, {}),
        (maps_an_own_derivative, {}),
        (checkpoints_what_needs_no_gradient, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_step_whose_graph_would_give_other_numbers_is_refused_with_its_line(
    forward: Callable[[Any, Tensor], Tensor], attributes: dict[str, Any]
) -> None:
    codes = (forward.__code__, Tripled.forward.__code__)
    with pytest.raises(CaptureError) as raised:
        capture(training(forward, **attributes))
    found = [int(line) for line in re.findall(r"test_python_state\.py:(\d+)", str(raised.value))]
    assert found
    assert found[0] in {line for code in codes for _, _, line in code.co_lines()}


def keeps_a_mask(self: Any, x: Tensor) -> Tensor:
    if self.mask is None:
        self.mask = torch.arange(6.0)
    return self.head(x * self.mask)


def test_a_constant_that_the_first_step_makes_and_keeps_is_no_state() -> None:
    with pytest.warns(UserWarning, match="sets attributes"):
        require_plain_step(training(keeps_a_mask, mask=None))


def differentiates(self: Any, x: Tensor) -> Tensor:
    hidden = self.fc(x)
    (slope,) = torch.autograd.grad(Tripled.apply(hidden).sum(), hidden, create_graph=True)
    return self.head(hidden * slope)


def test_autograd_grad_inside_a_step() -> None:
    # The slope is 3 whatever the hidden values are, and hands no gradient on.
    step = require_plain_step(training(differentiates))
    assert step.gradients["fc.weight"].any()


def compares_distributions(self: Any, x: Tensor) -> Tensor:
    mean, spread = self.fc(x).chunk(2, 1)
    posterior = torch.distributions.Normal(mean, spread.exp())
    return self.head(x) + torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0))


def test_distributions_are_traced_without_their_checks() -> None:
    before = torch.distributions.Distribution._validate_args  # torch.compile may have set it for the process
    require_plain_step(training(compares_distributions))
    assert torch.distributions.Distribution._validate_args == before


def test_checkpointed_blocks_are_named() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.fc, x, use_reentrant=False))

    with pytest.warns(UserWarning, match="checkpoint around 'fc' has no effect"):
        require_plain_step(training(forward))
