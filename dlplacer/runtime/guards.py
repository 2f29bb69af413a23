"""What must be as it was at capture: dtypes and autocast. Shapes and modes are captured again instead."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.frontend.job import Job
from dlplacer.errors import MismatchError


def require_autocast(job: Job) -> None:
    """Return unless torch.autocast is active with another dtype than the plan was captured with.

    Raises
    ------
    MismatchError
        Naming both.
    """
    for device_type in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device_type):
            active = str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")
            if active != job.autocast:
                raise MismatchError(
                    f"torch.autocast is active with {active}, but the plan was captured with autocast "
                    f"{job.autocast or 'off'}; leave the context, or capture with Job(autocast={active!r})"
                )


def require_dtypes(job: Job, leaves: Sequence[Any]) -> None:
    """Return if the inputs have the dtypes of the capture.

    Raises
    ------
    MismatchError
        Naming the position and both dtypes.
    """
    captured = pytree.tree_leaves((job.args, dict(job.kwargs), job.targets))
    for position, (leaf, expected) in enumerate(zip(leaves, captured, strict=False)):
        if isinstance(leaf, torch.Tensor) != isinstance(expected, torch.Tensor):
            raise MismatchError(f"input {position} is a {type(leaf).__name__}; the capture had {type(expected).__name__}")
        if isinstance(leaf, torch.Tensor) and leaf.dtype != expected.dtype:
            raise MismatchError(
                f"input {position} has dtype {leaf.dtype}; the plan was captured with {expected.dtype}: convert it, or "
                "capture and solve for that dtype"
            )
