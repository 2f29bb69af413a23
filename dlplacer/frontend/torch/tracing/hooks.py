"""The adapter to torch's private tables of hooks on modules and tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether the autograd engine would call something when it passes the module."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module calls something besides its forward, or its backward pass does."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or has_backward_hooks(module)


def gradient_hooks(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], Any]]:
    """What ``tensor.register_hook`` registered: called with a gradient, it may return another."""
    return list((getattr(tensor, "_backward_hooks", None) or {}).values())


def accumulation_hooks(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], None]]:
    """What ``register_post_accumulate_grad_hook`` registered: called with the tensor once it has its gradient."""
    return list((getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values())


def has_tensor_hooks(tensor: torch.Tensor) -> bool:
    """Whether `gradient_hooks` or `accumulation_hooks` has any."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))
