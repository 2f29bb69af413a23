"""Evaluation mode, other batch sizes, random ops, checkpoints: all but the training step at the plan's shapes."""

import copy

import pytest
import torch
from frontend.torch.small_models import Calls, Counting, build, build_with, dropout, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random, plain_loss
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import MismatchError
from dlplacer.frontend import Job

pytestmark = needs_two_cores

EXACT = {"rtol": 1e-6, "atol": 1e-6}


def inputs_of(job: Job, batch: int, seed: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Other inputs and labels for an image job."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, *job.args[0].shape[1:], generator=generator)
    return images, torch.randint(5, (batch,), generator=generator)


def test_evaluation_mode_returns_the_outputs_of_the_plain_module() -> None:
    job, plain = build("convolutions"), build("convolutions").module
    images, labels = inputs_of(job, batch=3)
    with placed_at_random(job, graph=graph_of("convolutions")) as placed:
        placed.step(*job.args, *job.targets)
        plain_loss(job, plain)
        placed.eval()
        plain.eval()
        torch.testing.assert_close(placed(images), plain(images), **EXACT)
        torch.testing.assert_close(placed(images, labels), functional.cross_entropy(plain(images), labels), **EXACT)
        before = copy.deepcopy(placed.state_dict())
        placed(images)
        assert all(torch.equal(tensor, before[name]) for name, tensor in placed.state_dict().items())


@pytest.mark.parametrize("name", ["convolutions", "attention", "counting"])
def test_inference_plans(name: str) -> None:
    trained, plain = build(name), build(name).module.eval()
    job = Job(trained.module, trained.args, mode="infer")
    with placed_at_random(job, seed=3) as placed:
        assert not placed.training
        torch.testing.assert_close(placed(*job.args), plain(*job.args), **EXACT)
        torch.testing.assert_close(placed(job.args[0][:2]), plain(job.args[0][:2]), **EXACT)
        torch.testing.assert_close(dict(placed.named_buffers()), dict(plain.named_buffers()), **EXACT)
        with torch.inference_mode():
            torch.testing.assert_close(placed(job.args[0][:3]), plain(job.args[0][:3]), **EXACT)
        placed.train()
        with pytest.raises(MismatchError, match="made for inference"):
            placed(*job.args)


def test_outputs_keep_their_nesting() -> None:
    def forward(self: Calls, x: torch.Tensor, factor: int) -> object:
        hidden = self.fc(x) * factor
        return {"a": hidden, "twice": (hidden, [hidden[:, :2]]), "none": None, "number": 3, "text": "x", "input": x}

    job = Job(Calls(forward, fc=nn.Linear(8, 5)), (torch.randn(4, 8), 2), mode="infer")
    with placed_at_random(job) as placed:
        for factor in (2, 5):
            ours, theirs = placed(job.args[0], factor), job.module(job.args[0], factor)
            assert list(ours) == list(theirs)
            torch.testing.assert_close(ours["a"], theirs["a"], **EXACT)
            torch.testing.assert_close(ours["twice"], theirs["twice"], **EXACT)
            assert (ours["none"], ours["number"], ours["text"]) == (None, 3, "x")
            assert torch.equal(ours["input"], job.args[0])


# Random ops draw from (a number of torch's generator, op), and not from where they run.
def test_dropout_does_not_depend_on_the_placement() -> None:
    losses = []
    for seed in range(3):
        job = build_with(dropout)
        with placed_at_random(job, seed=seed) as placed:
            torch.manual_seed(0)
            losses.append([placed.step(*job.args, *job.targets).item() for _ in range(3)])
    assert losses[0] == losses[1] == losses[2]
    assert len(set(losses[0])) == 3


def test_checkpoints_have_plain_names_and_load_in_both_directions() -> None:
    job, plain = build("counting"), build("counting", seed=1).module
    assert isinstance(job.module, Counting)
    with placed_at_random(job, graph=graph_of("counting")) as placed:
        assert list(placed.state_dict()) == ["calls", "fc.weight", "fc.bias"]
        placed.load_state_dict(plain.state_dict())
        torch.testing.assert_close(placed.step(*job.args, *job.targets), plain_loss(job, plain).detach(), **EXACT)
        assert placed.get_parameter("fc.weight") is job.module.fc.weight
        plain.load_state_dict(placed.state_dict())
        assert plain.calls.item() == 1


@needs_two_cores
@pytest.mark.parametrize("devices", [1, 2])
def test_modes_of_the_caller_are_not_those_of_a_step(devices: int) -> None:
    job = build("branches")
    with placed_at_random(job, devices, seed=3) as placed:
        placed.eval()
        with torch.inference_mode():
            inferred = placed(*job.args)
        with torch.device("cpu"), torch.no_grad():
            plain = placed(*job.args)
        assert torch.equal(inferred, plain)
        assert not plain.is_inference()
        placed.train()
        placed.step(*job.args, *job.targets)
        assert not any(one.grad.is_inference() for one in placed.parameters() if one.grad is not None)


class _Drawing(nn.Module):
    """Draws in every forward pass, as a sampler does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc(x)
        return hidden + torch.randn_like(hidden)


def test_every_inference_draws_anew() -> None:
    torch.manual_seed(11)
    job = Job(_Drawing(), (torch.randn(4, 8),), mode="infer")
    with placed_at_random(job) as placed:
        torch.manual_seed(5)
        several = [placed(*job.args) for _ in range(3)]
        assert not torch.equal(several[0], several[1])
        assert not torch.equal(several[1], several[2])
        torch.manual_seed(5)
        assert all(torch.equal(placed(*job.args), known) for known in several)
