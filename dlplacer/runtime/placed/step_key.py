"""What of a call decides the traced graph, besides the module."""

from collections.abc import Hashable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.job import Job, is_flat
from dlplacer.runtime.placed.number_inputs import is_number, number_bits


def step_key(job: Job) -> Hashable:
    """Mode, shapes, other values and nesting of the inputs."""
    return _key(job, number_bits)


def key_without_numbers(job: Job) -> Hashable:
    """As `step_key`, with the types of numbers instead of their values."""
    return _key(job, lambda leaf: type(leaf).__name__ if is_number(leaf) else number_bits(leaf))


def _key(job: Job, of_value: Any) -> Hashable:
    targets = job.targets if job.mode == "train" else ()
    if not job.kwargs and is_flat(job.args) and is_flat(targets):
        return job.mode, tuple([tuple(leaf.shape) for leaf in (*job.args, *targets)]), len(targets)
    leaves, nesting = pytree.tree_flatten((job.args, dict(job.kwargs), targets))
    described = (tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else of_value(leaf) for leaf in leaves)
    return job.mode, tuple(described), repr(nesting)
