"""The step as one module, for tracing; its tensors by name, and tensors that share memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as every_module
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.job import Job, loss_in
from dlplacer.frontend.torch.tracing.stand_in import TRACED_ON, fake_tensor, is_empty, stood_in

GLOBAL_BACKWARD_HOOKS: Mapping[str, Mapping[int, Callable[..., Any]]] = {
    "register_module_full_backward_hook": every_module._global_backward_hooks,
    "register_module_full_backward_pre_hook": every_module._global_backward_pre_hooks,
}
"""Registering function → the hooks that the autograd engine calls for every module."""
GLOBAL_HOOKS = (
    every_module._global_forward_hooks,
    every_module._global_forward_pre_hooks,
    *GLOBAL_BACKWARD_HOOKS.values(),
)


def has_backward_hooks(module: nn.Module) -> bool:
    """True if the autograd engine calls a hook of the module."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def has_hooks(module: nn.Module) -> bool:
    """True if the module has forward or backward hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or has_backward_hooks(module)


def gradient_hooks(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], Any]]:
    """The hooks of ``tensor.register_hook``: each is called with a gradient and may return another."""
    return list((getattr(tensor, "_backward_hooks", None) or {}).values())


def accumulation_hooks(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], None]]:
    """The hooks of ``register_post_accumulate_grad_hook``: each is called with the tensor after its gradient is set."""
    return list((getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values())


class StepModule(nn.Module):
    """Calls the job's module and loss; names of tensors begin with ``module.`` or, in a loss module, with ``loss.``.

    `registered`: id of a parameter or buffer, or of its stand-in → its name in this module.
    `mode`: the stand-ins' fake tensor mode.
    """

    def __init__(self, job: Job, stand_ins: Mapping[int, torch.Tensor], mode: FakeTensorMode) -> None:
        super().__init__()
        self.trains = job.mode == "train"
        self.module, self.loss = job.module, job.loss if self.trains else None
        names = {id(tensor): name for name, tensor in reversed([*named_tensors(self)])}
        self.mode = mode
        self.registered = names | {original: names[id(stand_in)] for original, stand_in in stand_ins.items()}
        self.autocast = None if job.autocast is None else getattr(torch, job.autocast)

    def forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: tuple[Any, ...]) -> Any:
        """The loss as a 1-tuple in training, else the module's output."""
        with torch.autocast(TRACED_ON.type, dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            if not self.trains:
                return self.module(*args, **kwargs)
            if self.loss is None:
                return (loss_in(self.module(*args, *targets, **kwargs)),)
            return (self.loss(self.module(*args, **kwargs), *targets),)


@contextmanager
def fake_step(job: Job) -> Iterator[tuple[StepModule, tuple[Any, ...]]]:
    """The step and its inputs, with stand-ins for all tensors: shapes, dtypes and strides without data.

    The modules are the job's own, in its mode; their tensors and all other state are restored when the context ends.
    """
    trains, mode = job.mode == "train", FakeTensorMode(allow_non_fake_inputs=True)
    loss = job.loss if trains else None
    modules = [job.module, *([loss] if isinstance(loss, nn.Module) else [])]
    trained = [{id(parameter) for parameter in each.parameters() if parameter.requires_grad} for each in modules]
    if trained[-1] - {id(parameter) for parameter in job.module.parameters()}:
        raise CaptureError(
            f"the loss {type(loss).__name__} has parameters to train; only the module is trained: move the loss "
            "into the module and use loss=None"
        )
    # Id of a parameter or buffer → its stand-in.
    stand_ins: dict[int, torch.Tensor] = {}
    for tensor in (each for module in modules for each in (*module.parameters(), *module.buffers())):
        made = fake_tensor(tensor, mode)
        is_parameter = isinstance(tensor, nn.Parameter)
        made = nn.Parameter(made, requires_grad=tensor.requires_grad) if is_parameter else made
        stand_ins.setdefault(id(tensor), made)
    with stood_in([*modules, loss], stand_ins):
        if not trains or not job.module.training:
            set_training(job.module, trains)
        if not trains:
            job.module.requires_grad_(False)
        inputs = job.args, dict(job.kwargs), job.targets
        fakes = pytree.tree_map_only(torch.Tensor, lambda tensor: fake_tensor(tensor, mode), inputs)
        yield StepModule(job, stand_ins, mode), fakes


def set_training(module: nn.Module, trains: bool) -> None:
    """Switch a module to training or evaluation mode."""
    # An exported program has a fixed mode.
    with suppress(NotImplementedError):
        module.train(trains)


def replaced_tensors(job: Job) -> list[str]:
    """Names of the buffers and parameters that a forward pass on stand-ins replaces; all names if it fails."""
    with fake_step(job) as (step, inputs):
        before = dict(named_tensors(step.module))
        try:
            with torch.set_grad_enabled(step.trains):
                step(*inputs)
        except Exception:
            return list(before)
        after = dict(named_tensors(step.module))
    return [name for name in {**before, **after} if before.get(name) is not after.get(name)]


def job_tensors(job: Job) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a job's module, and of its loss if that is a module, by their names in the capture."""
    tensors = dict(named_tensors(job.module))
    if isinstance(job.loss, nn.Module):
        tensors.update((f"(loss).{name}", tensor) for name, tensor in named_tensors(job.loss))
    return tensors


def named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of a module, a tied one under each of its names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def sharing(tensors: Mapping[str, torch.Tensor], written: Iterable[str]) -> tuple[str, str] | None:
    """The names of a written tensor and of another tensor in the same bytes; None if there is no such pair.

    One tensor under two names does not count: all its readers are known. A matrix column counts as its whole extent.
    """
    spans = {name: (place, *extent(tensor)) for name, tensor in tensors.items() if (place := storage_of(tensor))}
    for name in filter(spans.get, dict.fromkeys(written)):
        place, begin, end = spans[name]
        for other, (beside, low, high) in spans.items():
            if beside == place and begin < high and low < end and tensors[other] is not tensors[name]:
                return name, other
    return None


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """A tensor's first byte in its storage, and the byte after its last; equal for a tensor without elements."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    if not tensor.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (int(last) + 1) * tensor.element_size()


def storage_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's storage; None for a tensor without data."""
    if is_empty(tensor) or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr()
