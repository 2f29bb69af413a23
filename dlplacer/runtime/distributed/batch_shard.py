"""A replica's part of a job, and what one process makes of all parts."""

from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job


def part_of(job: Job, replica: int, replicas: int) -> Job:
    """The job with a replica's share of every input and target, cut along the first dimension.

    Raises
    ------
    InputError
        If the first dimension cannot be cut into equal parts: means over unequal parts are not the mean of the batch.
    """

    def cut(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.dim() == 0 or len(leaf) % replicas:
            raise InputError(
                f"an input of shape {list(leaf.shape)} cannot be cut into {replicas} equal parts; use a batch that "
                f"{replicas} divides"
            )
        size = len(leaf) // replicas
        return leaf[replica * size : (replica + 1) * size]

    def cut_all(value: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, cut, value)

    return replace(job, args=cut_all(job.args), kwargs=cut_all(dict(job.kwargs)), targets=cut_all(job.targets))
