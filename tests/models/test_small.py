from collections.abc import Callable

import pytest
import torch
from torch import nn

from dlplacer.frontend.torch.job import Job
from dlplacer.models import branches, mlp

Builder = Callable[..., Job]
BUILDERS = [branches, mlp]


def loss_of(job: Job) -> torch.Tensor:
    assert job.loss is not None
    loss: torch.Tensor = job.loss(job.module(*job.args), *job.targets)
    return loss


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("build", BUILDERS)
def test_seed_decides_weights_and_data(build: Builder) -> None:
    state = torch.random.get_rng_state()
    first, again, other = build(), build(), build(seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(loss_of(first), loss_of(again))
    assert not torch.equal(loss_of(first), loss_of(other))


# First layer 64·128 + 128 = 8,320; each hidden one 128·128 + 128 = 16,512; last 128·10 + 10 = 1,290.
@pytest.mark.parametrize(("tied", "hidden"), [(False, 3), (True, 1)])
def test_tied_hidden_layers_count_once(tied: bool, hidden: int) -> None:
    job = mlp(depth=3, tied=tied)
    assert count(job.module) == 8_320 + hidden * 16_512 + 1_290
    assert len({id(layer.weight) for layer in job.module.get_submodule("hidden").children()}) == hidden
