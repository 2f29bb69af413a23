"""Copies of a placed module, and what takes its place in a file."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random, plain_loss, require_same_step
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.frontend import Job

pytestmark = needs_two_cores

EXACT = {"rtol": 1e-6, "atol": 1e-6}


def test_a_deep_copy_has_its_own_tensors_and_runs() -> None:
    job, plain = build("counting"), build("counting").module
    with placed_at_random(job, graph=graph_of("counting")) as placed:
        placed.step(*job.args, *job.targets)
        plain_loss(job, plain)
        copied = copy.deepcopy(placed)
        with torch.no_grad():
            placed.fc.weight.zero_()
        torch.testing.assert_close(dict(copied.named_parameters()), dict(plain.named_parameters()), **EXACT)
        torch.testing.assert_close(copied.step(*job.args, *job.targets), plain_loss(job, plain).detach(), **EXACT)
        copied.eval()
        assert placed.training
        assert placed.fc.training
        copied.close()
        placed.step(*job.args, *job.targets)
        placed.close()
        with pytest.raises(InputError, match="is closed"):
            copied.train().step(*job.args, *job.targets)


def test_a_copy_of_an_edited_module_is_edited() -> None:
    job, plain = build("branches"), build("branches").module
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        for module in (job.module, plain):
            next(module.parameters()).requires_grad_(False)
        copied = copy.deepcopy(placed)
        require_same_step(copied, job, plain)
        copied.close()


class Gained(nn.Module):
    """Reads tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.gain, self.more = nn.Linear(6, 3), torch.ones(3), [torch.ones(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.fc(x) * self.gain + self.more[0]).square().mean()


def test_a_copy_reads_its_own_tensors_that_are_no_buffers() -> None:
    job = Job(Gained(), (torch.randn(4, 6),))
    with placed_at_random(job) as placed:
        placed.step(*job.args)
        copied = copy.deepcopy(placed)
        for number, module in ((2.0, copied), (3.0, placed), (0.5, copied)):
            own = module._job.module
            assert isinstance(own, Gained)
            for tensor in (own.gain, *own.more):
                tensor.fill_(number)
            for one in (copied, placed):
                assert torch.equal(one.step(*job.args), one._job.module(*job.args).detach())
        copied.close()


@pytest.mark.parametrize("save", [torch.save, pickle.dump])
def test_saving_the_module_itself_says_what_to_save(save: Any) -> None:
    job = build("linear")
    with (
        placed_at_random(job, graph=graph_of("linear")) as placed,
        pytest.raises(InputError, match=r"torch.save\(placed.state_dict\(\), file\), and the plan"),
    ):
        save(placed, io.BytesIO())
