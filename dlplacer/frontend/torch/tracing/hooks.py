"""The adapter to torch's private tables of hooks on modules and tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as every_module


def global_hooks() -> dict[str, Mapping[int, Callable[..., Any]]]:
    """The hooks that are called for every module, by the name of the function that registers them."""
    return {
        "register_module_forward_hook": every_module._global_forward_hooks,
        "register_module_forward_pre_hook": every_module._global_forward_pre_hooks,
        **_global_backward_hooks(),
    }


def global_backward_hook() -> str | None:
    """The function that registered a backward hook for every module, if there is such a hook."""
    return next((name for name, hooks in _global_backward_hooks().items() if hooks), None)


def _global_backward_hooks() -> dict[str, Mapping[int, Callable[..., Any]]]:
    return {
        "register_module_full_backward_hook": every_module._global_backward_hooks,
        "register_module_full_backward_pre_hook": every_module._global_backward_pre_hooks,
    }


def has_backward_hooks(module: nn.Module) -> bool:
    """True if the autograd engine calls a hook when it passes the module."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def has_hooks(module: nn.Module) -> bool:
    """True if a call of the module calls something besides its forward, or its backward pass does."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or has_backward_hooks(module)


def gradient_hooks(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], Any]]:
    """The hooks of ``tensor.register_hook``: each is called with a gradient and may return another."""
    return list((getattr(tensor, "_backward_hooks", None) or {}).values())


def accumulation_hooks(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], None]]:
    """The hooks of ``register_post_accumulate_grad_hook``: each is called with the tensor once it has its gradient."""
    return list((getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values())


def has_tensor_hooks(tensor: torch.Tensor) -> bool:
    """True if `gradient_hooks` or `accumulation_hooks` has any."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))
