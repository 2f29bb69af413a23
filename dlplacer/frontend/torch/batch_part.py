"""A part of a job's batch: what a replica or a micro-batch takes."""

from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job


def part_of(job: Job, number: int, count: int) -> Job:
    """The job with one of so many equal parts of every input and target, cut along the first dimension.

    Raises
    ------
    InputError
        If the first dimension cannot be cut into equal parts: means over unequal parts are not the mean of the batch.
    """

    def cut(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.dim() == 0 or len(leaf) % count:
            raise InputError(
                f"an input of shape {list(leaf.shape)} cannot be cut into {count} equal parts; use a batch that "
                f"{count} divides"
            )
        size = len(leaf) // count
        return leaf[number * size : (number + 1) * size]

    given = (job.args, dict(job.kwargs), job.targets)
    args, kwargs, targets = pytree.tree_map_only(torch.Tensor, cut, given)
    return replace(job, args=args, kwargs=kwargs, targets=targets)
