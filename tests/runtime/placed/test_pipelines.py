"""Pipelines as plans: every schedule keeps all rules and gives loss and gradients of plain PyTorch; two processes."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

import dlplacer as dp
from dlplacer.check import violations
from dlplacer.core.plan import Plan
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.pipeline.placed_pipeline import placed_pipeline
from dlplacer.planning.pipeline.schedules import SCHEDULES

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
