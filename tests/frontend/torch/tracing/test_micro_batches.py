"""The step in micro-batches against plain PyTorch: the whole batch, or micro-batch after micro-batch."""

import copy
from typing import Any

import pytest
import torch
from runtime.random_plans import placed_at_random
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites

TOLERANCE = 1e-5


class Net(nn.Module):
    """Convolution, a norm, perhaps a recurrent layer, and a head."""

    def __init__(self, norm: nn.Module, recurrent: bool = False) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 3), norm, nn.Linear(8, 5)
        self.recurrent = nn.LSTM(8, 8, batch_first=True) if recurrent else None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = functional.relu(self.norm(self.stem(images))).mean(3).transpose(1, 2)
        states = rows if self.recurrent is None else self.recurrent(rows)[0]
        scores: torch.Tensor = self.head(states.mean(1))
        return scores


def job_of(norm: nn.Module, batch: int = 6, **options: Any) -> Job:
    torch.manual_seed(0)
    images, labels = torch.randn(batch, 3, 6, 6), torch.randint(5, (batch,))
    return Job(Net(norm, **options), (images,), (labels,), functional.cross_entropy)


def rewritten(job: Job, count: int) -> OpGraph:
    more = [f"micro-batches:{count}"] if count > 1 else []
    return capture_job(job, [*default_rewrites(), *more]).graph


def trained(job: Job, count: int) -> tuple[OpGraph, torch.Tensor, nn.Module]:
    """The rewritten graph, and the loss and module after a step of it on two cores."""
    mine = copy.deepcopy(job)
    graph = rewritten(mine, count)
    with placed_at_random(mine, graph=graph) as placed:
        return graph, placed.step(*mine.args, *mine.targets), mine.module


def plain(job: Job, count: int) -> tuple[torch.Tensor, nn.Module]:
    """The mean loss of so many micro-batches one after another in plain PyTorch, and the module with the gradients."""
    theirs = copy.deepcopy(job)
    assert theirs.loss is not None
    total = torch.zeros(())
    for values in zip(*(value.chunk(count) for value in (*theirs.args, *theirs.targets)), strict=True):
        loss = theirs.loss(theirs.module(values[0]), *values[1:]) / count
        loss.backward()
        total += loss.detach()
    return total, theirs.module


def require_equal(job: Job, count: int, parts_of_plain: int) -> OpGraph:
    graph, loss, mine = trained(job, count)
    expected, theirs = plain(job, parts_of_plain)
    torch.testing.assert_close(loss, expected, rtol=TOLERANCE, atol=TOLERANCE)
    for (name, ours), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=TOLERANCE, atol=TOLERANCE, msg=name)
    for (name, ours), other in zip(mine.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(ours, other, rtol=TOLERANCE, atol=TOLERANCE, msg=name)
    return graph


def test_micro_batches_give_loss_and_gradients_of_the_whole_batch() -> None:
    job = job_of(nn.GroupNorm(2, 8), recurrent=True)
    graph = require_equal(job, count=3, parts_of_plain=1)
    one = capture_job(Job(job.module, (job.args[0][:2],), (job.targets[0][:2],), job.loss), default_rewrites()).graph
    calls = [op.id for op in one.ops if op.kind.startswith("aten.")]
    copies = {op.id: op.origin for op in graph.ops if op.origin}
    assert copies == {f"{name}_mb{number}": (name,) for name in calls for number in range(3)}
    sums = sum(op.kind == "aten.add" and not op.origin and op.phase == "backward" for op in graph.ops)
    assert sums == 2 * len(list(job.module.parameters()))


def test_batch_norm_sees_one_micro_batch_after_another() -> None:
    job = job_of(nn.BatchNorm2d(8))
    require_equal(job, count=3, parts_of_plain=3)
    (in_turn, _), (whole, _) = plain(job, 3), plain(job, 1)
    assert abs(float(in_turn - whole)) > 1e-3


def test_evaluation_and_another_batch_size_run_on_the_same_plan() -> None:
    job = job_of(nn.GroupNorm(2, 8))
    reference = copy.deepcopy(job.module)
    with placed_at_random(job, graph=rewritten(job, 2)) as placed:
        images, labels = torch.randn(4, 3, 6, 6), torch.randint(5, (4,))
        expected = functional.cross_entropy(reference(images), labels)
        torch.testing.assert_close(placed.step(images, labels), expected.detach(), rtol=TOLERANCE, atol=TOLERANCE)
        with pytest.raises(InputError, match=r"an input of shape \[5, 3, 6, 6\] cannot be cut into 2 equal parts"):
            placed.step(torch.randn(5, 3, 6, 6), torch.randint(5, (5,)))
        placed.eval()
        torch.testing.assert_close(placed(images), reference(images), rtol=TOLERANCE, atol=TOLERANCE)


def mean_then_sum(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (output - wanted).square().mean(0).sum()


def test_a_sum_of_means_is_a_mean() -> None:
    torch.manual_seed(0)
    job = Job(nn.Linear(4, 3), (torch.randn(8, 4),), (torch.randn(8, 3),), mean_then_sum)
    graph = require_equal(job, count=2, parts_of_plain=1)
    assert {op.id[-4:] for op in graph.ops if op.origin} == {"_mb0", "_mb1"}
