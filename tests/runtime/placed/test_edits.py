"""Edits after `apply`: the next step is that of plain PyTorch after the same edit, for some once captured anew."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from frontend.torch.small_models import CLASSES, build_with
from runtime.random_plans import needs_two_cores, placed_at_random, plain_loss, require_same_step
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook
from torch.nn.utils import parametrizations

from dlplacer.core.errors import CaptureError, InputError
from dlplacer.frontend import Job

pytestmark = needs_two_cores

EXACT = {"rtol": 1e-6, "atol": 1e-6}


class Layers(nn.Module):
    """Attributes of every sort that a forward pass reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.scale, self.sizes, self.config = 2.0, [1.0, 3.0], SimpleNamespace(shift=0.5)
        self.nested, self.gain = {"deep": [1.0]}, torch.tensor(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.first(x)) * self.scale + self.sizes[-1]
        return self.last(hidden * self.nested["deep"][0] + self.config.shift) * self.gain


def layers() -> Job:
    return Job(Layers(), (torch.randn(4, 8),), (torch.randint(CLASSES, (4,)),), functional.cross_entropy)


def freeze(module: Any) -> None:
    module.first.weight.requires_grad_(False)


def unfreeze(module: Any) -> None:
    module.first.weight.requires_grad_(True)


def swap(module: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module.first = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))


def new_parameter(module: Any) -> None:
    module.last.bias = nn.Parameter(torch.arange(float(CLASSES)))


def forward_hook(module: Any) -> None:
    module.first.register_forward_hook(lambda module, args, output: output * 3)


def weight_norm(module: Any) -> None:
    parametrizations.weight_norm(module.first)


def number(module: Any) -> None:
    module.scale = 7.0


def nested_entry(module: Any) -> None:
    module.nested["deep"][0] = 3.0


def tied(module: Any) -> None:
    module.first = nn.Linear(8, 8)
    module.last = nn.Sequential(module.first, nn.Linear(8, CLASSES))
    module.last[1].weight.data.fill_(0.5)
    module.last[1].bias.data.fill_(0.1)
    module.first.weight.data.fill_(0.25)
    module.first.bias.data.fill_(0.2)


EDITS: dict[str, list[Callable[[Any], None]]] = {
    "freeze, unfreeze": [freeze, unfreeze],
    "swap": [swap],
    "new parameter": [new_parameter],
    "forward hook": [forward_hook],
    "weight norm": [weight_norm],
    "number": [number],
    "nested entry": [nested_entry],
    "tied": [tied],
}


_UNSEEN = ("number", "nested entry")
"""Those that a call does not see."""


@pytest.mark.parametrize("name", EDITS)
def test_the_next_step_is_that_of_plain_pytorch_after_the_same_edit(name: str) -> None:
    joint = list(EDITS).index(name) % 2 == 0  # in one program, or by the autograd engine
    job, plain = build_with(layers), build_with(layers).module
    with placed_at_random(job, seed=2) as placed:
        for edit in (None, *EDITS[name]):
            for module in (job.module, plain) if edit is not None else ():
                edit(module)
            if edit is not None and name in _UNSEEN:
                placed.recapture()
            require_same_step(placed, job, plain, joint=joint)
            placed.eval()
            plain.eval()
            torch.testing.assert_close(placed(*job.args), plain(*job.args), **EXACT)
            placed.train()
            plain.train()


def test_a_backward_hook_is_refused_by_the_name_of_its_module() -> None:
    job = build_with(layers)
    with placed_at_random(job) as placed:
        handle = job.module.last.register_full_backward_hook(lambda module, inputs, outputs: None)
        with pytest.raises(CaptureError, match=r"module 'last' \(Linear\) has a backward hook"):
            placed.step(*job.args, *job.targets)
        handle.remove()
        placed.step(*job.args, *job.targets)


def test_hooks_of_the_placed_module_itself_are_called_or_refused() -> None:
    job = build_with(layers)
    with placed_at_random(job) as placed:
        placed.register_forward_hook(lambda module, args, output: output * 2)
        torch.testing.assert_close(placed(*job.args, *job.targets), 2 * plain_loss(job, job.module), **EXACT)
        with pytest.raises(InputError, match="has hooks, which step"):
            placed.step(*job.args, *job.targets)


def test_a_hook_for_every_module_is_called_or_refused() -> None:
    def doubled(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor | None:
        return output * 2 if isinstance(module, nn.Linear) else None

    job = build_with(layers)
    with placed_at_random(job) as placed:
        handle = register_module_forward_hook(doubled)
        try:
            torch.testing.assert_close(
                placed.step(*job.args, *job.targets), plain_loss(job, job.module).detach(), **EXACT
            )
        finally:
            handle.remove()
        handle = register_module_full_backward_hook(lambda module, inputs, outputs: None)
        try:
            with pytest.raises(CaptureError, match="register_module_full_backward_hook has registered a hook"):
                placed.step(*job.args, *job.targets)
        finally:
            handle.remove()
        torch.testing.assert_close(placed.step(*job.args, *job.targets), plain_loss(job, job.module).detach(), **EXACT)


class Scaled(nn.Module):
    """Multiplies by a number that it reads out of a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale = nn.Linear(3, 3), torch.tensor(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale.item()


@pytest.mark.filterwarnings("ignore:.* reads a number out of a tensor:UserWarning")
def test_a_number_that_was_read_out_of_a_tensor_needs_a_new_capture() -> None:
    x = torch.ones(2, 3)
    job, plain = Job(Scaled(), (x,), loss=lambda found: found.square().sum()), Scaled()
    with placed_at_random(job, 2, 1) as placed:
        for value in (2.0, 5.0):
            for module in (job.module, plain):
                module.scale.fill_(value)
            placed.recapture()
            assert float(placed.step(x)) == pytest.approx(float(plain(x).square().sum().detach()))


def test_attributes_of_the_job_module_are_not_set_on_the_placed_one() -> None:
    job = build_with(layers)
    with placed_at_random(job) as placed, pytest.raises(AttributeError, match="'scale' is an attribute of the module"):
        placed.scale = 3.0


def test_nothing_left_to_train_is_named() -> None:
    job = build_with(layers)
    with placed_at_random(job) as placed:
        job.module.requires_grad_(False)
        with pytest.raises(CaptureError, match="no parameter of the module requires a gradient"):
            placed.step(*job.args, *job.targets)
