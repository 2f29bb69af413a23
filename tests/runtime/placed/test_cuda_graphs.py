"""Stretches of ops captured and replayed, without a GPU: a replay does what the ops do, in the same places."""

from typing import Any

import pytest
import torch
from frontend.torch.small_models import build, dropout
from runtime.host_streams import HostGraph
from runtime.placed.test_placed_on_streams import placed_on_streams
from runtime.random_plans import plain_loss

from dlplacer.core.errors import InputError
from dlplacer.frontend import Job
from dlplacer.runtime.executor.backends import BACKENDS, CudaGraphs, segment_backend
from dlplacer.runtime.placed.placed_module import PlacedModule

pytestmark = pytest.mark.timeout(120)

STEPS = 6


def trained(job: Job, placed: PlacedModule, other_inputs: bool) -> list[dict[str, torch.Tensor]]:
    """Loss, gradients, parameters and buffers after every step of training, all with other numbers as inputs."""
    optimizer = torch.optim.SGD(placed.parameters(), lr=0.05, momentum=0.9)
    found, kept, given = [], [], []
    for number in range(STEPS):
        torch.manual_seed(number)
        args = [1.1**number * arg if arg.is_floating_point() and other_inputs else arg.clone() for arg in job.args]
        given.append((args, [arg.clone() for arg in args]))
        placed.zero_grad(set_to_none=True)
        loss = placed.step(*args, *job.targets)
        optimizer.step()
        gradients = {name: tensor.grad for name, tensor in placed.named_parameters() if tensor.grad is not None}
        kept.append((loss, gradients))
        found.append({name: tensor.detach().clone() for name, tensor in placed.state_dict().items()})
    # Only now: what a step was given or has returned must not change in later ones.
    assert all(torch.equal(arg, before) for args, copies in given for arg, before in zip(args, copies, strict=True))
    for state, (loss, gradients) in zip(found, kept, strict=True):
        state |= {"the loss": loss} | {f"{name}.grad": tensor for name, tensor in gradients.items()}
    return found


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of two ops are worth a graph: random plans have no long ones."""
    monkeypatch.setitem(BACKENDS, "cuda_graph", lambda: CudaGraphs(least=2))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("name", "copies"), [("branches", "free"), ("branches", "forced"), ("recurrent", "forced")])
def test_replays_train_as_the_ops_do(name: str, copies: str) -> None:
    with placed_on_streams(build(name), copies, seed=1) as (placed, log):
        expected = trained(build(name), placed, other_inputs=True)
        assert "replay" not in log
    with placed_on_streams(build(name), copies, seed=1, segments="cuda_graph") as (placed, log):
        found = trained(build(name), placed, other_inputs=True)
        assert log.count("replay") >= STEPS - 2
        assert log.count("capture") * (STEPS - 2) == log.count("replay")
        assert not [note for note in placed.graph_notes if "the segment" in note]
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert torch.equal(ours[key], theirs[key]), (number, key)


def drawing() -> Job:
    """A job with dropout; every time the same."""
    torch.manual_seed(0)
    return dropout()


# Dropout draws; what comes before and after it is replayed.
@pytest.mark.usefixtures("short")
def test_ops_that_draw_stay_outside() -> None:
    with placed_on_streams(drawing(), "free", seed=1) as (placed, _):
        expected = trained(drawing(), placed, other_inputs=False)
    with placed_on_streams(drawing(), "free", seed=1, segments="cuda_graph") as (placed, log):
        found = trained(drawing(), placed, other_inputs=False)
        assert "replay" in log
        assert [note for note in placed.graph_notes if "draws random numbers: every step seeds them anew" in note]
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


# A capture that CUDA refuses.
@pytest.mark.usefixtures("short")
def test_a_segment_that_cannot_be_captured_is_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: HostGraph) -> None:
        self.__exit__(None, None, None)
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    with placed_on_streams(build("branches"), "free", seed=1) as (placed, _):
        expected = trained(build("branches"), placed, other_inputs=True)
    monkeypatch.setattr(HostGraph, "capture_end", refused)
    with placed_on_streams(build("branches"), "free", seed=1, segments="cuda_graph") as (placed, log):
        found = trained(build("branches"), placed, other_inputs=True)
        assert "replay" not in log
        assert "cannot be captured: CUDA error: operation failed due to a previous" in placed.graph_notes[0]
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


# A parameter that has moved is read where it is now.
@pytest.mark.usefixtures("short")
def test_a_parameter_that_moves_is_captured_again() -> None:
    job, plain = build("branches"), build("branches")
    with placed_on_streams(job, "free", seed=1, segments="cuda_graph") as (placed, log):
        for _ in range(4):
            placed.step(*job.args, *job.targets)
        before = log.count("capture")
        for module in (placed, plain.module):
            for parameter in module.parameters():
                parameter.data = parameter.data * 2
        for name, buffer in placed.named_buffers():
            dict(plain.module.named_buffers())[name].copy_(buffer)
        assert torch.equal(placed.step(*job.args, *job.targets), plain_loss(plain, plain.module).detach())
        assert log.count("capture") > before


# Graphs of a pool are replayed in the order of their capture: a later one writes over what an earlier one is done with.
# One that is captured once the others have been would leave its tensors where a later one computes.
@pytest.mark.usefixtures("short")
def test_what_is_captured_again_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[object] = []
    real = HostGraph.capture_begin

    def noted(self: HostGraph, pool: object = None, **rest: Any) -> None:
        pools.append(pool)
        real(self, pool, **rest)

    monkeypatch.setattr(HostGraph, "capture_begin", noted)
    job = build("branches")
    with placed_on_streams(job, "free", seed=1, segments="cuda_graph") as (placed, _):
        for _ in range(3):
            placed.step(*job.args, *job.targets)
        shared = {*pools}
        assert len(shared) == 2  # a device has one
        assert len(pools) > 2
        pools.clear()
        for parameter in placed.parameters():
            parameter.data = parameter.data.clone()
        placed.step(*job.args, *job.targets)
        assert pools
        assert shared.isdisjoint(pools)
        assert len({*pools}) == len(pools)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InputError, match="segments is 'yes'; use "):
        segment_backend("yes")
