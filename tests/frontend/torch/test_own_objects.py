"""A capture runs on the user's own objects: whatever leads to them sees one state, and all is as before afterwards."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend.torch.op_by_op import OpByOp, require_plain_step
from torch import nn

from dlplacer.core.errors import CaptureError
from dlplacer.frontend import Job, capture
from dlplacer.frontend.torch.capture import capture_job, default_rewrites

Tensor = torch.Tensor


class Normed(nn.Module):
    """A layer and a norm that is reached otherwise than by its name."""

    def __init__(self, reach: Callable[["Normed"], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.reached = reach(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.reached(self.fc(x))


def by_closure(owner: Normed) -> Callable[[Tensor], Tensor]:
    norm = owner.norm
    return lambda x: norm(x)


def by_own_flag(owner: Normed) -> Callable[[Tensor], Tensor]:
    return lambda x: 2 * x if owner.training else x


def by_weak_reference(owner: Normed) -> Callable[[Tensor], Tensor]:
    norm = weakref.ref(owner.norm)
    return lambda x: norm()(x)  # type: ignore[misc]


def by_hook(owner: Normed) -> Callable[[Tensor], Tensor]:
    owner.fc.register_forward_hook(lambda module, args, output: output * 2 if owner.training else output)
    return lambda x: x


REACHES = (by_closure, by_own_flag, by_weak_reference, by_hook)


@pytest.mark.parametrize("reach", REACHES)
def test_inference_of_a_module_in_training_mode_is_captured_in_evaluation_mode(reach: Any) -> None:
    x = torch.randn(5, 6)
    job = Job(Normed(reach), (x,), mode="infer")
    found = OpByOp(job, capture_job(job, default_rewrites()))
    assert job.module.training
    job.module.eval()
    torch.testing.assert_close(found.loss, job.module(x).detach())


@pytest.mark.parametrize("reach", REACHES)
def test_training_of_a_module_in_evaluation_mode_is_captured_in_training_mode(reach: Any) -> None:
    job = Job(Normed(reach).eval(), (torch.randn(5, 6),), targets=(torch.randn(5, 6),), loss=F.mse_loss)
    captured = capture_job(job, default_rewrites())
    assert not job.module.training
    found = OpByOp(job, captured)
    job.module.train()
    torch.testing.assert_close(found.loss, F.mse_loss(job.module(*job.args), *job.targets).detach())


class Auxiliary(nn.Module):
    """Leaves a loss of its own in an attribute, and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.aux: Any = 0.0
        self.losses: list[Tensor] = []
        self.fc.register_forward_hook(lambda module, args, output: self.losses.append(output.abs().mean()))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.fc(x)
        self.aux = hidden.pow(2).mean()
        return hidden

    def criterion(self, output: Tensor, target: Tensor) -> Tensor:
        total = F.mse_loss(output, target) + self.aux + sum(self.losses)
        self.losses.clear()
        return total


@pytest.mark.filterwarnings("ignore:.*a placed step does not")
@pytest.mark.parametrize("runs_before", [0, 1])
def test_loss_reads_what_forward_leaves_in_attributes(runs_before: int) -> None:
    module = Auxiliary()
    for _ in range(runs_before):
        module(torch.randn(5, 6))
    module.losses.clear()
    job = Job(module, (torch.randn(5, 6),), targets=(torch.randn(5, 6),), loss=module.criterion)
    before = module.aux
    ours = require_plain_step(job)
    assert not ours.differed
    assert runs_before or before == 0.0
    assert module.losses == []


class Slotted:
    """Keeps what it is given in a slot."""

    __slots__ = ("last", "times")

    def __init__(self) -> None:
        self.last: Any = None
        self.times = 0


class Table(dict[str, Any]):
    """A dict of its own class, as the tables of some modules are."""


def test_capture_restores_objects_of_every_kind_that_a_forward_pass_changes() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self._parameters = Table(self._parameters)
            self.fc._parameters = Table(self.fc._parameters)
            self.slotted, self.table, self.seen = Slotted(), Table(count=0), [0]

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.fc(x)
            self.slotted.last, self.slotted.times = output, self.slotted.times + 1
            self.table["count"] += 1
            self.seen.append(1)
            # The values decide what comes back.
            return output if output.sum().item() > 0 else 2 * output

    module = Keeping()
    weight = module.fc.weight
    with pytest.raises(CaptureError):
        capture(Job(module, (torch.randn(4, 3),), mode="infer"))
    assert (module.slotted.last, module.slotted.times, module.table, module.seen) == (None, 0, {"count": 0}, [0])
    assert module.fc.weight is weight
    assert weight.requires_grad
    assert module.training


def test_tensor_outside_the_module_that_a_step_writes_is_refused_with_its_line_and_stays() -> None:
    outside = torch.ones(2)

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            outside.mul_(2)
            return self.fc(x) * outside

    with pytest.raises(CaptureError, match=r"test_own_objects\.py:\d+ \(outside\.mul_\(2\)\)"):
        capture(Job(Writing(), (torch.randn(4, 3),), mode="infer"))
    assert outside.tolist() == [1.0, 1.0]
