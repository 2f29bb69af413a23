"""Jobs cut into parts for replicas, and what a single process makes of the same steps."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from dlplacer.frontend import Job


def part_of(job: Job, replica: int, replicas: int) -> Job:
    """The job with a replica's share of the batch."""

    def cut(leaf: torch.Tensor) -> torch.Tensor:
        size = len(leaf) // replicas
        return leaf[replica * size : (replica + 1) * size]

    return replace(
        job,
        args=pytree.tree_map_only(torch.Tensor, cut, job.args),
        targets=pytree.tree_map_only(torch.Tensor, cut, job.targets),
    )


def trained(jobs: Sequence[Job], steps: int, lr: float = 0.1) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses, and parameters after plain SGD on the mean of the gradients of some batches, in one process."""
    module = jobs[0].module
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        mean = sum(job.loss(module(*job.args), *job.targets) for job in jobs) / len(jobs)
        mean.backward()
        optimizer.step()
        losses.append(float(mean.detach()))
    return losses, {name: parameter.detach() for name, parameter in module.named_parameters()}


def farthest(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest difference between tensors of the same name."""
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
