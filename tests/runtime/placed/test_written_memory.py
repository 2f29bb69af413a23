"""An input that lies in memory to which the step writes: refused by name, or the numbers of plain PyTorch."""

from dataclasses import replace

import pytest
import torch
from runtime.random_plans import needs_two_cores, placed_at_random
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.frontend import Job

pytestmark = needs_two_cores


class Counting(nn.Module):
    """Keeps a running mean of its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("kept", torch.randn(8, 4))
        self.register_buffer("idle", torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input after the buffer was written to."""
        with torch.no_grad():
            self.kept.mul_(0.5)
        return torch.tanh(self.linear(x)) + x + self.idle


def counting() -> Job:
    torch.manual_seed(1)
    return Job(Counting(), (torch.randn(4, 4),), (torch.randn(4, 4),), functional.mse_loss)


def test_an_input_in_a_buffer_that_is_written_is_refused() -> None:
    job = counting()
    y = job.targets[0]
    with placed_at_random(job, 2, seed=2) as placed:
        kept = placed.kept
        for alias in (kept[2:6], kept[::2]):
            for call in (lambda x=alias: placed.step(x, y), lambda x=alias: placed(x, y)):
                with pytest.raises(InputError, match=r"^input 0 of the step shares memory with 'kept', which the step"):
                    call()
        placed.eval()
        with pytest.raises(InputError, match="shares memory with 'kept'"):
            placed(kept[:4])
        placed.train()
        for x in (placed.idle, kept[:4].clone()):
            expected = functional.mse_loss(Counting()(x.clone()), y)
            assert torch.allclose(placed.step(x, y), expected, atol=1e-6)


def test_an_input_in_a_parameter_that_the_step_updates_is_refused() -> None:
    job = replace(counting(), optimizer="sgd")
    with placed_at_random(job, 2, seed=2) as placed:
        with pytest.raises(InputError, match="shares memory with 'linear"):
            placed.step(placed.linear.weight.detach(), *job.targets)
        placed.step(placed.linear.weight.detach().clone(), *job.targets)
