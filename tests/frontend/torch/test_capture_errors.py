"""What cannot be captured, and what its author is told."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.torch.small_models import Calls
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import CaptureError
from dlplacer.frontend import Job, capture

WAY_OUT = "values must not decide control flow or shapes: use torch.where, or move that line out of the module"


def training(function: Callable[..., Any], loss: Any = functional.cross_entropy) -> Job:
    """A job whose module has a linear layer ``fc`` and calls a function with itself and x."""
    module = Calls(function, fc=nn.Linear(8, 5))
    return Job(module, (torch.randn(4, 8),), (torch.randint(5, (4,)),), loss)


def branches_on_a_value(self: Any, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:  # this line
        x = x * 2
    return self.fc(x)


def takes_a_number_out(self: Any, x: torch.Tensor) -> torch.Tensor:
    count = int(x.sum().item())  # this line
    return self.fc(x) * count


def selects_by_value(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x) + x[x > 0].sum()  # this line


def asks_numpy(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x) * float(x.detach().numpy().sum())  # this line


def line_of(function: Callable[..., Any]) -> str:
    """``file:line (code)`` of the line that carries the comment."""
    lines, first = inspect.getsourcelines(function)
    number, text = next((number, text) for number, text in enumerate(lines, first) if "# this line" in text)
    return f"{__file__}:{number} ({text.strip()})"


@pytest.mark.parametrize(
    "function",
    [branches_on_a_value, takes_a_number_out, selects_by_value, asks_numpy],
    ids=lambda function: function.__name__,
)
def test_control_flow_by_values_names_the_line_and_the_way_out(function: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(training(function))
    message = str(caught.value)
    code = line_of(function).partition("  #")[0]
    assert code in message
    assert message.endswith(WAY_OUT)
    assert "\n" not in message


def test_lists_that_a_hook_or_a_forward_fills_are_warned_of() -> None:
    seen: list[torch.Tensor] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)

    job = training(forward)
    job.module.fc.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    with pytest.warns(UserWarning, match=r"the forward pass changes 'fc\._forward.*; a placed step does not"):
        capture(job)

    def logging(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.log.append(1)
        return self.fc(x)

    job = training(logging)
    job.module.log = []
    with pytest.warns(UserWarning, match="the forward pass changes 'log'; a placed step does not"):
        capture(job)


def test_a_loss_with_parameters_to_train() -> None:
    loss = Calls(lambda self, output, target: functional.mse_loss(self.scale(output), target), scale=nn.Linear(5, 5))
    job = Job(nn.Linear(8, 5), (torch.randn(4, 8),), (torch.randn(4, 5),), loss)
    with pytest.raises(CaptureError, match="loss Calls has parameters to train; only the module is trained"):
        capture(job)
    loss.requires_grad_(False)
    graph = capture(job)
    assert {"(loss).scale.weight", "(loss).scale.bias"} <= graph.index.keys()


# A graph that fails between entering and leaving autocast used to leave the process inside it, where plain PyTorch
# keeps the casts of weights for ever.
@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_a_failed_capture_leaves_autocast_as_it_was(autocast: str | None) -> None:
    def hooks_a_tensor(self: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc(x)
        hidden.register_hook(lambda gradient: gradient * 2)
        return hidden

    module = Calls(hooks_a_tensor, fc=nn.Linear(8, 5))
    with pytest.raises(CaptureError, match="hook on a tensor that doesn't require gradient"):
        capture(Job(module, (torch.randn(4, 8),), mode="infer", autocast=autocast))
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0
