"""Processes that take a step together must call it with the same shapes: found out before anything is sent."""

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.distributed.group import HOST, RankGroup


def require_same_call(group: RankGroup, job: Job, trained: frozenset[str]) -> None:
    """Return if all processes are about to take the same step.

    One exchange of 16 bytes: what crosses processes has no header but in the first step, and gloo ends a process that
    gets another number of bytes than it waits for.

    Parameters
    ----------
    trained
        Names of the tensors that require a gradient.

    Raises
    ------
    InputError
        On all processes: naming two of them and what differs.
    """
    if group.ranks.count == 1:
        return
    leaves = pytree.tree_leaves((job.args, dict(job.kwargs), job.targets))
    call = job.mode, [described(leaf) for leaf in leaves]
    digest = hashlib.sha256(repr((call, sorted(trained))).encode()).digest()
    number = int.from_bytes(digest[:7], "big")  # its negative fits into 64 bits too
    ends = torch.tensor([number, -number])
    group.call(HOST, "the comparison of what is called", lambda: dist.all_reduce(ends, dist.ReduceOp.MAX))
    if ends.tolist() != [number, -number]:
        group.require_same({"mode": call[0], "inputs": call[1], "trained parameters": sorted(trained)})


def described(leaf: Any) -> str:
    """An input in a word or two: shape and dtype of a tensor, a number or a text itself."""
    return f"{list(leaf.shape)} {leaf.dtype}" if isinstance(leaf, torch.Tensor) else repr(leaf)
