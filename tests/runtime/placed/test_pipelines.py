"""Pipelines as plans: every schedule keeps all rules and gives loss and gradients of plain PyTorch; two processes."""

import copy
import dataclasses
from contextlib import closing

import pytest
import torch
from processes import run_ranks
from runtime.random_plans import needs_two_cores
from torch import nn
from torch.nn import functional

import dlplacer as dp
from dlplacer.check import violations
from dlplacer.core.errors import MismatchError
from dlplacer.core.plan import Plan
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.models import gnmt
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.pipeline.placed_pipeline import placed_pipeline
from dlplacer.planning.pipeline.schedule.schedules import SCHEDULES
from dlplacer.runtime.distributed import apply_ranks

MICRO_BATCHES = 4


class Skipping(nn.Module):
    """A mask and the first layer's output are read at the very end; the layers between have norms of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))
        self.first, self.last = nn.BatchNorm1d(6), nn.GroupNorm(2, 6)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mask = values > 0
        first = states = torch.tanh(self.layers[0](values))
        states = self.first(states)
        for layer in self.layers[1:]:
            states = torch.tanh(layer(states))
        joined: torch.Tensor = torch.where(mask, self.last(states) + first, first * values)
        return joined


def skipping() -> Job:
    torch.manual_seed(0)
    return Job(Skipping(), (torch.randn(8, 6),), (torch.randn(8, 6),), functional.mse_loss)


def plans_of(job: Job, schedules: tuple[str, ...] = tuple(SCHEDULES)) -> list[Plan]:
    base = capture_job(job, default_rewrites()).graph
    rewritten = capture_job(job, [*default_rewrites(), f"micro-batches:{MICRO_BATCHES}"]).graph
    topology = dp.load_topology("cpu-2core")
    pipelines = [
        plan_pipeline(base, topology, stages=2, micro_batches=MICRO_BATCHES, schedule=name) for name in schedules
    ]
    return [placed_pipeline(pipeline, rewritten, topology) for pipeline in pipelines]


def plain(job: Job) -> tuple[float, nn.Module]:
    """The mean loss of the micro-batches one after another, and the module with gradients and statistics."""
    module, total = copy.deepcopy(job.module), 0.0
    for values, wanted in zip(job.args[0].chunk(MICRO_BATCHES), job.targets[0].chunk(MICRO_BATCHES), strict=True):
        loss = functional.mse_loss(module(values), wanted) / MICRO_BATCHES
        loss.backward()
        total += float(loss.detach())
    return total, module


def test_every_schedule_gives_loss_gradients_and_statistics_of_plain_pytorch() -> None:
    job = skipping()
    loss, theirs = plain(job)
    for name, plan in zip(SCHEDULES, plans_of(job), strict=True):
        assert not violations(plan), name
        assert plan.method == f"pipeline/{name}"
        assert set(plan.placement.values()) == {"cpu0", "cpu1"}
        assert 0 < plan.lower_bound_s <= plan.makespan_s
        mine = dataclasses.replace(job, module=copy.deepcopy(job.module))
        placed = dp.apply(mine, plan, ["cpu:0", "cpu:1"])
        try:
            assert float(placed.step(*mine.args, *mine.targets)) == pytest.approx(loss, abs=1e-6), name
        finally:
            placed.close()
        for ours, other in zip(mine.module.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, other.grad, rtol=1e-5, atol=1e-6, msg=name)
        for ours, other in zip(mine.module.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6, msg=name)


class Tied(nn.Module):
    """An embedding whose weight is the head's, in the first and the last stage."""

    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.embedding(tokens)
        for layer in self.layers:
            states = torch.tanh(layer(states))
        scores: torch.Tensor = self.head(states)
        return scores


def tied(is_tied: bool = True) -> Job:
    torch.manual_seed(0)
    tokens = torch.randint(12, (8, 3))
    loss = nn.CrossEntropyLoss()
    return Job(Tied(is_tied), (tokens,), (tokens,), lambda scores, labels: loss(scores.flatten(0, 1), labels.flatten()))


def test_a_tied_weight_is_in_two_stages_and_its_gradients_are_summed() -> None:
    job = tied()
    theirs = copy.deepcopy(job.module)
    assert job.loss is not None
    job.loss(theirs(*job.args), *job.targets).backward()
    plan, untied = plans_of(job, ("1f1b",))[0], plans_of(tied(False), ("1f1b",))[0]
    assert {plan.placement[op] for op in ("embedding_mb0", "mm_mb0")} == {"cpu0", "cpu1"}
    assert plan.placement["mm_mb0"] == untied.placement["mm_mb0"]
    crossing = [transfer for transfer in plan.transfers if transfer.bytes == 12 * 8 * 4]
    assert len(crossing) == 3, (
        "what the forward and the backward pass read of the weight, and its gradient, once a step"
    )
    with closing(dp.apply(job, plan, ["cpu:0", "cpu:1"])) as placed:
        placed.step(*job.args, *job.targets)
    for ours, other in zip(job.module.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-5, atol=1e-6)


@needs_two_cores
def test_two_processes_run_a_pipeline() -> None:
    job = skipping()
    loss, theirs = plain(job)
    (plan,) = plans_of(job, ("1f1b",))

    def work(_rank: int) -> tuple[float, dict[str, torch.Tensor]]:
        placed = apply_ranks(job, plan, "rank0/cpu:0,rank1/cpu:1")
        found = float(placed.step(*job.args, *job.targets))
        gradients = {name: tensor.grad for name, tensor in placed.named_parameters() if tensor.grad is not None}
        placed.close()
        return found, gradients

    outcomes = run_ranks(2, work)
    gradients = {name: tensor for _, own in outcomes for name, tensor in own.items()}
    assert all(found == pytest.approx(loss, abs=1e-6) for found, _ in outcomes)
    assert all(own for _, own in outcomes)
    assert gradients.keys() == dict(theirs.named_parameters()).keys()
    for name, other in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], other.grad, rtol=1e-5, atol=1e-6, msg=name)


# The bidirectional layer is two blocks of one module; a split may put the one that comes later into the earlier stage.
def test_a_recurrent_model_runs_under_every_schedule() -> None:
    for plan in plans_of(gnmt(length=3, vocabulary=20, batch_size=8, hidden=8, layers=2)):
        assert not violations(plan), plan.method


def test_micro_batches_with_other_ops_than_the_batch_are_refused() -> None:
    """At one sample torch makes fewer copies than at four, and counts its ops on without them."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    job = Job(nn.TransformerEncoder(layer, 2), (torch.randn(4, 3, 8),), (torch.randn(4, 3, 8),), functional.mse_loss)
    with pytest.raises(MismatchError, match=r"one of 4 micro-batches has other ops than the whole batch, such as"):
        plans_of(job, ("1f1b",))
