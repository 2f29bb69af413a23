"""An input that lies in memory to which the step writes: refused by name, or the numbers of plain PyTorch."""

import numpy as np
import pytest
import torch
from runtime.random_plans import needs_two_cores, placed_at_random
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.frontend import Job
from dlplacer.frontend.torch.job import Optimizer
from dlplacer.runtime.placed.written_memory import WrittenMemory

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


def test_an_input_in_a_buffer_that_is_written_is_refused_and_beside_it_taken() -> None:
    job = counting()
    y = job.targets[0]
    with placed_at_random(job, 2, seed=2) as placed:
        kept = placed.kept
        for alias in (kept[2:6], kept[::2], torch.from_numpy(kept.detach().numpy()[3:7])):
            for call in (lambda x=alias: placed.step(x, y), lambda x=alias: placed(x, y)):
                with pytest.raises(InputError, match=r"^input 0 of the step shares memory with 'kept', which the step"):
                    call()
        placed.eval()
        with pytest.raises(InputError, match="shares memory with 'kept'"):
            placed(kept[:4])
        placed.train()
        wide = torch.randn(8, 8)
        kept.data = wide[:, ::2]
        with pytest.raises(InputError, match="shares memory with 'kept'"):
            placed.step(wide[:4, :4], y)
        beside = wide[:4, 1::2]  # between the buffer's elements
        for x in (beside, placed.idle, torch.empty(0, 4)[:0].new_zeros(4, 4)):
            plain = Counting()
            expected = functional.mse_loss(plain(x.clone()), y)
            assert torch.allclose(placed.step(x, y), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_input_that_is_a_parameter_is_read_before_the_update(kind: str) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(torch.tanh(self.one(x)))

    for seed in range(4):
        job = Job(
            Twice(), (torch.ones(4, 4),), (torch.zeros(4, 4),), functional.mse_loss, optimizer=Optimizer(kind, 0.1)
        )
        plain, y = Twice(), job.targets[0]
        rule = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](plain.parameters(), lr=0.1)
        with placed_at_random(job, 2, seed) as placed:
            for _ in range(3):
                loss = placed.step(placed.other.weight.detach(), y)
                rule.zero_grad()
                expected = functional.mse_loss(plain(plain.other.weight.detach()), y)
                expected.backward()
                rule.step()
                assert torch.allclose(loss, expected, atol=1e-6)
            for ours, theirs in zip(placed.parameters(), plain.parameters(), strict=True):
                assert torch.allclose(ours, theirs, atol=1e-6)


def test_every_overlap_is_found_and_no_other() -> None:
    chooser = np.random.default_rng(0)
    base = torch.zeros(200)
    for _ in range(60):
        tensors = {}
        for number in range(chooser.integers(0, 6)):
            begin, step = int(chooser.integers(150)), int(chooser.integers(1, 4))
            tensors[f"t{number}"] = base[begin : begin + int(chooser.integers(0, 30)) : step]
        written = WrittenMemory([*tensors])
        for _ in range(10):
            begin, step = int(chooser.integers(150)), int(chooser.integers(1, 4))
            value = base[begin : begin + int(chooser.integers(0, 30)) : step]
            base.zero_()
            value.fill_(1.0)
            expected = {name for name, tensor in tensors.items() if bool(tensor.any())}
            found = written.tensor_in(value, tensors)
            assert (found in expected) if expected else (found is None)
