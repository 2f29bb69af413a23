"""What of a call decides the traced graph, besides the module."""

import struct
from collections.abc import Hashable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.job import Job


def step_key(job: Job) -> Hashable:
    """Mode, shapes, other values and nesting of the inputs."""
    targets = job.targets if job.mode == "train" else ()
    leaves, nesting = pytree.tree_flatten((job.args, dict(job.kwargs), targets))
    return job.mode, tuple(map(_of_leaf, leaves)), repr(nesting)


def _of_leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape)
    # By its bits: NaN is not equal to itself, and 0.0 is equal to -0.0.
    return type(leaf).__name__, struct.pack("d", leaf) if isinstance(leaf, float) else leaf
