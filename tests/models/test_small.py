import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import dlplacer.models
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


def test_import_loads_no_torch() -> None:
    root = Path(dlplacer.models.__file__).parents[2]
    code = "import sys, dlplacer.models; print('torch' in sys.modules, 'inception_v3' in dlplacer.models.__all__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "False True"


def test_every_exported_name_is_a_builder() -> None:
    assert set(dlplacer.models.__all__) <= set(dir(dlplacer.models))
    for name in dlplacer.models.__all__:
        assert getattr(dlplacer.models, name).__name__ == name


def test_unknown_builder_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        AttributeError, match=r"no attribute 'lenet'; its builders are .*branches, .*inception_v3, .*mlp"
    ):
        dlplacer.models.lenet  # noqa: B018


@pytest.mark.parametrize("build", BUILDERS)
def test_trains(build: Builder) -> None:
    job = build(batch_size=4)
    loss = loss_of(job)
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in job.module.parameters())
    assert job.args[0].shape[0] == job.targets[0].shape[0] == 4
    assert job.mode == "train"


@pytest.mark.parametrize("build", BUILDERS)
def test_seed_decides_weights_and_data(build: Builder) -> None:
    state = torch.random.get_rng_state()
    first, again, other = build(), build(), build(seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(loss_of(first), loss_of(again))
    assert not torch.equal(loss_of(first), loss_of(other))


@pytest.mark.parametrize("build", BUILDERS)
def test_nothing_is_allocated_under_a_fake_tensor_mode(build: Builder) -> None:
    state = torch.random.get_rng_state()
    with FakeTensorMode():
        job = build()
    tensors = [*job.module.parameters(), *job.module.buffers(), *job.args, *job.targets]
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors)
    assert torch.equal(torch.random.get_rng_state(), state)


# Stem 3·16·9 + 2·16 = 464; each branch 16·48·9 + 2·48 = 7,008; last layer 10·48·branches + 10.
@pytest.mark.parametrize(("wanted", "parameters"), [(2, 464 + 14_016 + 970), (3, 464 + 21_024 + 1_450)])
def test_branches_has_as_many_branches_as_wanted(wanted: int, parameters: int) -> None:
    job = branches(batch_size=2, count=wanted)
    assert count(job.module) == parameters
    assert job.module(*job.args).shape == (2, 10)


def test_branches_leaves_dropout_out_unless_asked_for() -> None:
    assert not any(isinstance(layer, nn.Dropout) for layer in branches().module.modules())
    assert [layer.p for layer in branches(dropout=0.3).module.modules() if isinstance(layer, nn.Dropout)] == [0.3]


# First layer 64·128 + 128 = 8,320; each hidden one 128·128 + 128 = 16,512; last 128·10 + 10 = 1,290.
@pytest.mark.parametrize(("tied", "hidden"), [(False, 3), (True, 1)])
def test_tied_hidden_layers_count_once(tied: bool, hidden: int) -> None:
    job = mlp(depth=3, tied=tied)
    assert count(job.module) == 8_320 + hidden * 16_512 + 1_290
    assert len({id(layer.weight) for layer in job.module.get_submodule("hidden").children()}) == hidden
