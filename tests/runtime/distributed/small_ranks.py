"""A small classifier with batch norm and dropout, planned over two ranks, and the same in plain PyTorch."""

import torch
from runtime.random_plans import random_plan
from torch import nn
from torch.nn import functional

from dlplacer.core.plan import Plan
from dlplacer.frontend import Job, capture

NAMES = "rank0/cpu:0,rank1/cpu:1"


class Classifier(nn.Module):
    """The same weights each time."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of three classes."""
        scores: torch.Tensor = self.last(self.middle(self.dropout(self.norm(self.first(x).relu()))).relu())
        return scores


def small_job(dropout: float = 0.0, batch: int = 4) -> Job:
    module = Classifier(dropout)
    torch.manual_seed(1)
    inputs, targets = torch.randn(batch, 4), torch.randint(3, (batch,))
    return Job(module, (inputs,), (targets,), functional.cross_entropy)


def small_plan(dropout: float = 0.0, seed: int = 1) -> Plan:
    return random_plan(capture(small_job(dropout)), 2, seed)


def plain_step(module: nn.Module, job: Job, lr: float = 0.1) -> float:
    """The loss, and a step of plain SGD."""
    module.zero_grad()
    assert job.loss is not None
    loss = job.loss(module(*job.args), *job.targets)
    loss.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(parameter.grad, alpha=lr)
    return float(loss.detach())
