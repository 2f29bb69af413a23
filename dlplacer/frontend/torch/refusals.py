"""Jobs that cannot be traced, recognised before tracing: the error names the module, tensor or input."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.tracing.hooks import (
    accumulation_hooks,
    global_backward_hook,
    gradient_hooks,
    has_backward_hooks,
)

_PLAIN_VALUES = (bool, int, float, str)


def require_traceable(job: Job, input_names: Sequence[str]) -> None:
    """Return if no module, tensor or input of a job is of a sort that cannot be traced.

    Parameters
    ----------
    input_names
        A readable name for each flat input, for messages.

    Raises
    ------
    CaptureError
        Naming the module, tensor or input, and the way out.
    """
    leaves = flat_inputs(job)
    for name, leaf in zip(input_names, leaves, strict=True):
        _require_input(name, leaf)
    named: Mapping[str, torch.Tensor] = {**dict(job.module.named_parameters()), **dict(job.module.named_buffers())}
    for name, tensor in named.items():
        if is_lazy(tensor):
            raise CaptureError(f"{name!r} has no shape yet; call the module once with its inputs, then capture it")
        _require_plain(repr(name), tensor)
        if job.update is not None and (gradient_hooks(tensor) or accumulation_hooks(tensor)):
            raise CaptureError(
                f"{name!r} has a hook, which an update inside the step does not call; capture without an optimizer and "
                "step one of torch.optim"
            )
    trains = job.mode == "train"
    if trains and (registered := global_backward_hook()) is not None:
        raise CaptureError(
            f"torch.nn.modules.module.{registered} has registered a hook for every module, which the engine would "
            "call; remove it (handle.remove()), or hook the parameters"
        )
    for path, module in job.module.named_modules():
        reason = _reason(module, trains=trains and (module.training or not job.module.training))
        if reason is not None:
            where = f"module {path!r}" if path else "the module"
            raise CaptureError(f"{where} ({type(module).__name__}) {reason}")


def _require_input(name: str, leaf: Any) -> None:
    if isinstance(leaf, torch.Tensor):
        _require_plain(f"input {name}", leaf)
    elif leaf is not None and not isinstance(leaf, _PLAIN_VALUES):
        kind = type(leaf)
        raise CaptureError(
            f"input {name} is a {kind.__module__}.{kind.__qualname__}; give tensors, numbers, texts and None, nested "
            "in tuples, lists, dicts or types known to torch.export.register_dataclass, or make it part of the module"
        )


def _require_plain(what: str, tensor: torch.Tensor) -> None:
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise CaptureError(f"{what} is a tensor of layout {kind}, which no plan places; give a dense (padded) tensor")
    if tensor.is_quantized:
        raise CaptureError(f"{what} is quantized, which no plan can place; give a tensor of numbers: .dequantize()")
    if not isinstance(tensor, FakeTensor) and any(_of_its_own(type(tensor), name) for name in _DISPATCHERS):
        raise CaptureError(
            f"{what} is a {type(tensor).__qualname__}, whose own handling of ops no plan calls; give a plain tensor: "
            ".as_subclass(torch.Tensor), or .full_tensor() of one that is distributed"
        )


_DISPATCHERS = ("__torch_function__", "__torch_dispatch__")


def _of_its_own(kind: type, name: str) -> bool:
    """True if a type of tensors intercepts ops otherwise than tensors and parameters do."""
    method, plain = (getattr(getattr(of, name), "__func__", getattr(of, name)) for of in (kind, torch.Tensor))
    return method is not plain and method is not getattr(nn.Parameter, name)


def _reason(module: nn.Module, trains: bool) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by TorchScript, which cannot be traced; give the module that it was made of"
    if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
        return "is quantized: its weights are packed for one kernel; plan the module that it was made of"
    if has_backward_hooks(module):
        return "has a backward hook, which the engine would call; remove it (handle.remove()), or hook its parameters"
    if isinstance(module, _BatchNorm) and trains and module.momentum is None and module.track_running_stats:
        return "has momentum=None: the weight of the mean hangs on the value of a counter; give momentum a number"
    return None
