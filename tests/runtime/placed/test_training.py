"""Placed training against plain PyTorch.

The placed step runs the same kernels in the same dtype as plain PyTorch with one thread, so losses, statistics and most
gradients agree to the last bit. Only where a gradient is a sum of more than two parts may the parts be added in another
order, which costs a few units in the last place: `EXACT` allows 1e-6 of a value of size 1.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from frontend.torch.small_models import BUILDERS, build, graph_of
from runtime.random_plans import (
    needs_two_cores,
    placed_at_random,
    plain_loss,
    require_same_gradients,
    require_same_step,
)
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.frontend import Job, Optimizer
from dlplacer.runtime import PlacedModule

pytestmark = needs_two_cores

EXACT = {"rtol": 1e-6, "atol": 1e-6}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def one_step(placed: PlacedModule, job: Job, through_autograd: bool) -> torch.Tensor:
    """Loss and gradients of the placed step."""
    if not through_autograd:
        return placed.step(*job.args, *job.targets, **job.kwargs)
    loss: torch.Tensor = placed(*job.args, *job.targets, **job.kwargs)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def assert_same_tensors(placed: nn.Module, plain: nn.Module, **tolerance: float) -> None:
    ours, theirs = placed.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        torch.testing.assert_close(
            tensor, theirs[name], **(tolerance or EXACT), msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", BUILDERS)
def test_losses_gradients_and_statistics_are_those_of_plain_pytorch(name: str) -> None:
    job, plain = build(name), build(name).module
    with placed_at_random(job, seed=len(name), graph=graph_of(name)) as placed:
        ours, theirs = OPTIMIZERS["momentum"](placed.parameters()), OPTIMIZERS["momentum"](plain.parameters())
        for through_autograd in (True, False):
            require_same_step(placed, job, plain, joint=not through_autograd)
            for optimizer in (ours, theirs):
                optimizer.step()
        assert_same_tensors(placed, plain)


UPDATES = {
    "sgd": (Optimizer("sgd", lr=0.05), OPTIMIZERS["sgd"]),
    "sgd with weight decay": (
        Optimizer("sgd", lr=0.05, weight_decay=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, weight_decay=0.1),
    ),
    "momentum": (Optimizer("momentum", lr=0.05), OPTIMIZERS["momentum"]),
    "adam": (Optimizer("adam", lr=0.01), OPTIMIZERS["adam"]),
    "adam with weight decay": (
        Optimizer("adam", lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    ),
}


# Adam divides by the root of a mean square. Where a gradient is near 0 this magnifies its rounding: a wider margin.
@pytest.mark.parametrize(
    ("name", "model"),
    [*((name, "linear") for name in UPDATES), ("adam", "branches"), ("momentum", "tied"), ("adam", "frozen part")],
)
def test_updates_inside_the_step_are_those_of_torch_optim(name: str, model: str) -> None:
    rule, make_theirs = UPDATES[name]
    base, plain = build(model), build(model).module
    job = Job(base.module, base.args, base.targets, base.loss, optimizer=rule)
    with placed_at_random(job, seed=2) as placed:
        theirs = make_theirs(plain.parameters())
        for _ in range(4):
            loss = placed.step(*job.args, *job.targets)
            theirs.zero_grad()
            expected = plain_loss(job, plain)
            expected.backward()  # type: ignore[no-untyped-call]
            theirs.step()
            torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)
        assert_same_tensors(placed, plain, rtol=1e-4, atol=1e-5)
        assert all(parameter.grad is None for parameter in placed.parameters())


def test_state_of_the_updates_can_be_saved_and_restored() -> None:
    base = build("linear")
    job = Job(base.module, base.args, base.targets, base.loss, optimizer="adam")
    with placed_at_random(job) as placed:
        placed.step(*job.args, *job.targets)
        saved = copy.deepcopy((placed.state_dict(), placed.updater.state))
        placed.step(*job.args, *job.targets)
        expected = copy.deepcopy(placed.state_dict())
        placed.load_state_dict(saved[0])
        placed.updater.state = saved[1]
        placed.step(*job.args, *job.targets)
        for name, tensor in placed.state_dict().items():
            assert torch.equal(tensor, expected[name])


def test_two_forwards_before_two_backwards_keep_their_own_activations() -> None:
    job, plain = build("branches"), build("branches").module
    images, labels = job.args[0], job.targets[0]
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        first, second = placed(images, labels), placed(images.flip(0), labels)
        first.backward()
        second.backward()
        theirs = [nn.functional.cross_entropy(plain(x), labels) for x in (images, images.flip(0))]
        for loss in theirs:
            loss.backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(torch.stack([first, second]), torch.stack(theirs), **EXACT)
        require_same_gradients(placed, plain)


def test_gradients_of_two_parameters_never_share_memory() -> None:
    job = build("shared gradient")
    for through_autograd in (True, False):
        with placed_at_random(job, graph=graph_of("shared gradient")) as placed:
            one_step(placed, job, through_autograd)
            places = [parameter.grad.untyped_storage().data_ptr() for parameter in placed.parameters()]
            assert len(set(places)) == len(places)
            placed.zero_grad()


@pytest.mark.parametrize("through_autograd", [True, False])
def test_gradients_of_biases_for_one_example_are_added_up_apart(through_autograd: bool) -> None:
    torch.manual_seed(0)
    job = Job(nn.LSTMCell(4, 4), (torch.randn(1, 4),), (), lambda states: states[0].square().sum())
    plain = copy.deepcopy(job.module)
    with placed_at_random(job) as placed:
        for _ in range(2):
            one_step(placed, job, through_autograd)
            plain_loss(job, plain).backward()  # type: ignore[no-untyped-call]
        require_same_gradients(placed, plain)
        both = [placed.get_parameter(name).grad for name in ("bias_ih", "bias_hh")]
        assert both[0].data_ptr() != both[1].data_ptr()


@pytest.mark.parametrize("through_autograd", [True, False])
def test_hooks_of_parameters_are_called(through_autograd: bool) -> None:
    def negate(parameter: torch.Tensor) -> None:
        parameter.grad.neg_()

    def hooked(job: Job) -> Job:
        job.module.weight.register_hook(lambda gradient: gradient * 3)
        job.module.bias.register_hook(lambda gradient: None)
        job.module.bias.register_post_accumulate_grad_hook(negate)
        return job

    job, plain = hooked(build("linear")), hooked(build("linear")).module
    with placed_at_random(job, graph=graph_of("linear")) as placed:
        for _ in range(2):
            one_step(placed, job, through_autograd)
            plain_loss(job, plain).backward()  # type: ignore[no-untyped-call]
            require_same_gradients(placed, plain)
        # -(-g + g) after two steps
        assert not placed.get_parameter("bias").grad.any()


def test_without_gradients_the_forward_pass_runs_alone() -> None:
    job, plain = build("convolutions"), build("convolutions").module
    with placed_at_random(job, graph=graph_of("convolutions")) as placed:
        with torch.no_grad():
            loss = placed(*job.args, *job.targets)
            expected = plain_loss(job, plain)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, expected, **EXACT)
        assert_same_tensors(placed, plain)
        assert all(parameter.grad is None for parameter in placed.parameters())


def test_weights_that_change_between_forward_and_backward_are_noticed() -> None:
    job = build("tied")
    with placed_at_random(job, graph=graph_of("tied")) as placed:
        loss = placed(*job.args, *job.targets)
        with torch.no_grad():
            placed.get_parameter("last.bias").add_(1)  # no backward op reads it
            placed.get_parameter("last.weight").add_(1)
        with pytest.raises(InputError, match=r"'last\.weight' was changed between forward and backward"):
            loss.backward()


@pytest.mark.parametrize("position", [0, 1])
def test_inputs_and_targets_that_change_between_forward_and_backward_are_noticed(position: int) -> None:
    job = build("linear")
    given = [tensor.clone() for tensor in (*job.args, *job.targets)]
    with placed_at_random(job, graph=graph_of("linear")) as placed:
        loss = placed(*given)
        given[position].zero_()
        with pytest.raises(InputError, match=r"(args|targets)\[0\]' was changed between forward and backward"):
            loss.backward()
        placed(*given).backward()


def test_a_second_backward_of_one_loss_is_refused() -> None:
    job = build("linear")
    with placed_at_random(job, graph=graph_of("linear")) as placed:
        loss = placed(*job.args, *job.targets)
        loss.backward(retain_graph=True)
        with pytest.raises(InputError, match="backward was called twice on one loss"):
            loss.backward()
