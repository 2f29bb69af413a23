"""Small jobs, placed over two cores as threads or as processes."""

import torch
from torch import nn

import dlplacer as dp
from dlplacer.measure.selftest.random_plan import random_plan
from dlplacer.runtime.placed.placed_module import PlacedModule


class Branches(nn.Module):
    """Two branches with batch norm and dropout; its tensors cross devices in most random placements."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(12, 16), nn.Linear(12, 16)
        self.norm, self.drop, self.last = nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(32, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        left = self.drop(torch.tanh(self.left(rows)))
        return self.last(torch.cat([left, torch.relu(self.norm(self.right(rows)))], 1))


ROWS = torch.linspace(-1, 1, 96).reshape(8, 12)
LABELS = torch.arange(8) % 3


def job_of(module: nn.Module, optimizer: str | None = None) -> dp.Job:
    """A training job of a module."""
    return dp.Job(module, args=(ROWS,), targets=(LABELS,), loss=nn.functional.cross_entropy, optimizer=optimizer)


def placed_branches(processes: str, seed: int = 3, optimizer: str | None = None) -> PlacedModule:
    """`Branches` with the same weights every time, placed at random."""
    torch.manual_seed(1)
    return placed(job_of(Branches(), optimizer), processes, seed)


def branches_on_one() -> PlacedModule:
    """The same on one core, where the calling thread runs it."""
    torch.manual_seed(1)
    job = job_of(Branches())
    return dp.apply(job, dp.place(job, "cpu-2core", method="single").plan, "cpu:0,cpu:1")


def placed(job: dp.Job, processes: str, seed: int = 3) -> PlacedModule:
    """A job, placed at random over two cores."""
    plan = dp.place(job, "cpu-2core", method="single").plan
    return dp.apply(job, random_plan(plan.graph, plan.topology, seed), "cpu:0,cpu:1", processes=processes)


def worker_of(module: PlacedModule) -> int:
    """The process of the second device."""
    (pid,) = module.worker_pids
    return pid
