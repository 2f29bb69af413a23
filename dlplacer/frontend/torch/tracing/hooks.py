"""The adapter to torch's private tables of hooks on modules and tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as every_module

_Hooks = Mapping[int, Callable[..., Any]]
GLOBAL_BACKWARD_HOOKS: Mapping[str, _Hooks] = {
    "register_module_full_backward_hook": every_module._global_backward_hooks,
    "register_module_full_backward_pre_hook": every_module._global_backward_pre_hooks,
}
"""The function that registers it → the hooks that the engine calls for every module."""
GLOBAL_HOOKS: tuple[_Hooks, ...] = (
    every_module._global_forward_hooks,
    every_module._global_forward_pre_hooks,
    *GLOBAL_BACKWARD_HOOKS.values(),
)
"""All hooks that are called for every module."""


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
