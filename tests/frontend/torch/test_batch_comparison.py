"""Cuts into micro-batches against the whole batch: found, mended or refused, and what a found cut computes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime.random_plans import placed_at_random
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import CaptureError, InputError
from dlplacer.frontend import Job
from dlplacer.frontend.torch.batch_comparison import compared_cut, likely_cuts
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.frontend.torch.tracing.micro_batches import part_of
from dlplacer.models import mlp
from dlplacer.planning.pipeline.micro_batch_names import BatchCut, batch_cut_of

LABELS = torch.tensor([0, 1, 2, 3, 0, 0, -100, -100])


class Layers(nn.Module):
    """Two layers, the second for a table of weights given with the inputs if there is one."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), norm or nn.Identity(), nn.Linear(8, 4)

    def forward(self, values: torch.Tensor, table: torch.Tensor | None = None) -> torch.Tensor:
        states = torch.relu(self.norm(self.first(values)))
        result: torch.Tensor = self.second(states) if table is None else states @ table
        return result


class TimeFirst(nn.Module):
    """Time is dimension 0, the batch dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(5, 6), nn.Linear(6, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.recurrent(values)[0])
        return scores


def masked_mean(output: torch.Tensor, wanted: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return ((output - wanted).square().mean(1) * mask).sum() / mask.sum()


def contrastive(output: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output @ output.T, torch.arange(len(output)))


def spread(output: torch.Tensor) -> torch.Tensor:
    return output.std(0).mean()


def steep(output: torch.Tensor) -> torch.Tensor:
    """The value of a mean, the gradient of a deviation over the batch."""
    deviation = spread(output)
    return output.mean().detach() + deviation - deviation.detach()


def job_of(loss: Callable[..., Any], *targets: torch.Tensor, module: nn.Module | None = None, **options: Any) -> Job:
    torch.manual_seed(0)
    return Job(module or Layers(), (torch.randn(8, 6), *options.get("more", ())), targets, loss)


EQUAL: dict[str, Callable[[], Job]] = {
    "mean": lambda: job_of(functional.cross_entropy, torch.randint(4, (8,))),
    "sum": lambda: job_of(nn.MSELoss(reduction="sum"), torch.randn(8, 4)),
    "ignored tokens": lambda: job_of(functional.cross_entropy, LABELS),
    "class weights": lambda: job_of(nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0, 4.0])), LABELS),
    "smoothed": lambda: job_of(nn.CrossEntropyLoss(label_smoothing=0.1), LABELS),
    "only ignored tokens in a part": lambda: job_of(
        functional.cross_entropy, LABELS.clone().fill_(-100).scatter(0, torch.arange(4), 1)
    ),
    "mask": lambda: job_of(masked_mean, torch.randn(8, 4), (LABELS >= 0).float()),
    "a table as long as the batch": lambda: job_of(functional.mse_loss, torch.randn(8, 4), more=(torch.randn(8, 4),)),
    "time first": lambda: Job(TimeFirst(), (torch.randn(6, 8, 5),), (torch.randn(6, 8, 4),), functional.mse_loss),
}


def gradients(job: Job, module: nn.Module) -> list[torch.Tensor]:
    return [each.grad for each in module.parameters() if each.grad is not None]


@pytest.mark.parametrize("name", list(EQUAL))
def test_the_cut_that_is_found_has_the_loss_and_gradients_of_the_whole_batch(name: str) -> None:
    job = EQUAL[name]()
    theirs = copy.deepcopy(job)
    assert theirs.loss is not None
    expected = theirs.loss(theirs.module(*theirs.args), *theirs.targets)
    expected.backward()
    found = compared_cut(job, 2, default_rewrites())
    assert not found.warnings
    graph = capture_job(job, [*default_rewrites(), str(found.cut)]).graph
    with placed_at_random(job, graph=graph) as placed:
        torch.testing.assert_close(placed.step(*job.args, *job.targets), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(job, job.module), gradients(theirs, theirs.module), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [contrastive, spread, steep])
def test_a_loss_over_the_batch_is_refused_with_its_size(loss: Callable[..., torch.Tensor]) -> None:
    job = job_of(loss)
    with pytest.raises(CaptureError, match=r"gradients off by .* --allow-other-loss"):
        compared_cut(job, 2)
    allowed = compared_cut(job, 2, allow_other_loss=True)
    assert allowed.cut == BatchCut(2)
    assert len(allowed.warnings) == 1


class Nearest(nn.Module):
    """Squared distances of samples to prototypes, which are an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)

    def forward(self, samples: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
        return (self.first(samples)[:, None] - prototypes).square().sum(-1)


def test_prototypes_that_lie_in_their_samples_part_by_chance_are_not_cut() -> None:
    torch.manual_seed(0)
    module, samples = Nearest(), torch.randn(4, 6)
    prototypes = module.first(samples).detach()[[1, 0, 3, 2]]
    job = Job(module, (samples, prototypes), (), lambda distances: distances.min(1).values.mean())
    assert compared_cut(job, 2).cut == BatchCut(2, (0, None))


def test_batch_norm_alone_is_a_warning_with_its_size_and_leaves_no_trace() -> None:
    job = job_of(functional.mse_loss, torch.randn(8, 4), module=Layers(nn.BatchNorm1d(8)))
    before = copy.deepcopy(job.module.state_dict())
    found = compared_cut(job, 2)
    assert found.cut == BatchCut(2)
    assert "batch norm" in found.warnings[0]
    torch.testing.assert_close(job.module.state_dict(), before)


@pytest.mark.parametrize(
    "cut", [BatchCut(2), BatchCut(4, (0, None, 1)), BatchCut(3, (), "sum"), BatchCut(8, (1,), "getitem_1")]
)
def test_a_cut_is_written_as_a_rewrite_and_read_back(cut: BatchCut) -> None:
    assert batch_cut_of(["other", str(cut)]) == cut


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    parts = [part_of(mlp(batch_size=6), number, BatchCut(3)) for number in range(3)]
    assert [len(part.args[0]) for part in parts] == [2, 2, 2]
    with pytest.raises(InputError, match=r"shape \[6, 64\] cannot be cut into 4 equal parts"):
        part_of(mlp(batch_size=6), 0, BatchCut(4))


def test_an_input_of_the_batch_size_may_be_none_of_the_batch() -> None:
    job = Job(nn.Identity(), (torch.zeros(4, 6), torch.zeros(4, 3)))
    first, *others = likely_cuts(job, 2)
    assert first == BatchCut(2)
    assert BatchCut(2, (0, None)) in others
    assert BatchCut(2, (None, None)) not in others


def test_a_job_without_data_is_compared_on_random_tensors() -> None:
    with torch.device("meta"):
        job = Job(Layers(), (torch.empty(8, 6),), (torch.empty(8, dtype=torch.long),), functional.cross_entropy)
    assert compared_cut(job, 2).cut == BatchCut(2)
