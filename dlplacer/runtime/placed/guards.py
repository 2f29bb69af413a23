"""Checks that inputs, dtypes and autocast are as at capture. New shapes and modes are captured again instead."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.frontend.torch.job import Job, leaves_of
from dlplacer.frontend.torch.tracing.hooks import has_hooks
from dlplacer.frontend.torch.tracing.quiet import autocast_types
from dlplacer.frontend.torch.tracing.stand_in import is_empty


def in_order(expected: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given keyword arguments in the order of the expected ones; InputError if they are not the same names."""
    wrong = sorted(expected.keys() ^ given.keys())
    if wrong:
        raise InputError(
            f"the step takes the keyword arguments {', '.join(expected) or '(none)'}; {wrong[0]!r} "
            + ("is missing" if wrong[0] in expected else "is none of them")
        )
    return {name: given[name] for name in expected}


def require_no_own_hooks(placed: nn.Module) -> None:
    """Raise InputError if a placed module itself has hooks, which only a call of it passes."""
    if has_hooks(placed):
        raise InputError(
            "the placed module has hooks, which step() does not call: call the module and loss.backward() instead, or "
            "remove them (handle.remove())"
        )


def require_autocast(job: Job) -> None:
    """Raise MismatchError if torch.autocast is active with another dtype than the plan was captured with."""
    for device_type in autocast_types():
        if torch.is_autocast_enabled(device_type):
            active = str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")
            if active != job.autocast:
                raise MismatchError(
                    f"torch.autocast is active with {active}, but the plan was captured with autocast "
                    f"{job.autocast or 'off'}; leave the context, or capture with Job(autocast={active!r})"
                )


def require_unscaled_updates(job: Job) -> None:
    """Raise InputError if the step updates parameters with float16 gradients, which would need a scaler."""
    if job.autocast == "float16" and job.update is not None:
        raise InputError(
            "float16 gradients need a GradScaler, which an update inside the step has not; capture without an "
            "optimizer and use scaler.scale(loss).backward() and scaler.step(optimizer), or autocast to bfloat16"
        )


def require_inputs(
    job: Job, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: tuple[Any, ...], differentiates: bool
) -> None:
    """Raise MismatchError unless inputs are tensors of the job's dtypes, without a gradient of their own."""
    parts = [("args", leaves_of(args), leaves_of(job.args)), ("targets", leaves_of(targets), leaves_of(job.targets))]
    if kwargs:
        parts.insert(1, ("kwargs", pytree.tree_leaves(dict(kwargs)), pytree.tree_leaves(dict(job.kwargs))))
    for part, leaves, wanted in parts:
        if len(leaves) != len(wanted) and (part != "targets" or leaves):
            raise MismatchError(
                f"{part} holds {len(leaves)} values; the capture had {len(wanted)}: call it with inputs nested as there"
            )
        for position, (leaf, captured) in enumerate(zip(leaves, wanted, strict=False)):
            _require_input(f"{part}[{position}]", leaf, captured, differentiates)


def require_data(name: str, tensor: torch.Tensor) -> None:
    """Raise InputError if a parameter or buffer is on the meta device or a stand-in."""
    if is_empty(tensor):
        what = "on the meta device" if tensor.is_meta else "a stand-in"
        raise InputError(
            f"{name!r} is {what} and has no data: such a module can be planned but not run; build it with real memory"
        )


def _require_input(name: str, leaf: Any, captured: Any, differentiates: bool) -> None:
    if isinstance(leaf, torch.Tensor) != isinstance(captured, torch.Tensor):
        raise MismatchError(f"input {name} is a {type(leaf).__name__}; the capture had {type(captured).__name__}")
    if not isinstance(leaf, torch.Tensor):
        return
    if is_empty(leaf) or leaf.layout != torch.strided:
        what = (
            f"has layout {leaf.layout}" if leaf.layout != torch.strided else "has no data (meta device, or a stand-in)"
        )
        raise MismatchError(f"input {name} {what}; give a dense tensor with data")
    if type(leaf).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise MismatchError(
            f"input {name} is a {type(leaf).__name__}, which computes in a way of its own; give the plain tensor in it"
        )
    if leaf.dtype != captured.dtype:
        raise MismatchError(
            f"input {name} has dtype {leaf.dtype}; the plan was captured with {captured.dtype}: convert it, or capture "
            "and solve for that dtype"
        )
    if differentiates and leaf.requires_grad:
        raise MismatchError(f"input {name} requires a gradient; a placed step has them for parameters only: detach it")


def require_whole(name: str, tensor: torch.Tensor) -> None:
    """Raise MismatchError if a parameter or buffer was cut since the plan was applied, as FSDP does."""
    if hasattr(tensor, "full_tensor"):
        raise MismatchError(
            f"{name!r} is a piece of a tensor (DTensor) that nobody put together: a placed module calls no sub-module, "
            "so fully_shard on one never gathers it; wrap the placed module alone, fully_shard(placed), or use "
            "DistributedDataParallel(placed) or replicas"
        )


def require_home(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raise MismatchError if something has moved or cut a parameter or buffer since the plan was applied."""
    if tensor.device != device or hasattr(tensor, "full_tensor"):
        require_whole(name, tensor)
        raise MismatchError(
            f"{name!r} is on {tensor.device}; the plan has it on {device}: fully_shard and .to() put all parameters on "
            "one device; apply the plan again, or use DistributedDataParallel(placed) or replicas"
        )


def require_unwritten(written: Iterable[str], tensors: Mapping[str, torch.Tensor], inputs: Sequence[Any]) -> None:
    """Raise InputError if an input shares memory with a buffer that the step writes to: ops may read it at any time.

    `written` are names among `tensors`.
    """
    owner = {_memory(tensors[name]): name for name in written}
    for position, leaf in enumerate(inputs):
        if isinstance(leaf, torch.Tensor) and leaf.numel() and _memory(leaf) in owner:
            raise InputError(
                f"input {position} of the step shares memory with {owner[_memory(leaf)]!r}, which the step writes to; "
                "give it memory of its own (.clone())"
            )


def apart_from(written: Iterable[str], tensors: Mapping[str, torch.Tensor], inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with copies of those that share memory with tensors that are written."""
    taken = {_memory(tensors[name]) for name in written}
    return [leaf.clone() if isinstance(leaf, torch.Tensor) and _memory(leaf) in taken else leaf for leaf in inputs]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
