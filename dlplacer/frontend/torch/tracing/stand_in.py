"""Stand-ins for tensors: the same shape, dtype and strides on the CPU, but no data and no memory."""

import copy
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.tracing.quiet import TRACED_ON


def fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """The stand-in of a tensor that is real, on the meta device, or a stand-in of another mode."""
    with mode:
        # With the strides of the tensor: which views are legal, and which kernels are traced, depends on them.
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=TRACED_ON)


def fake_tree(value: Any, mode: FakeTensorMode) -> Any:
    """A nested value with every tensor replaced by its stand-in."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: fake_tensor(tensor, mode), value)


def fake_module(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy of a module whose parameters and buffers are stand-ins; tied ones stay tied.

    Tensors in plain attributes are constants of the step and stay as they are; one without data is zero.
    """
    replaced: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        stand_in = fake_tensor(tensor, mode)
        if isinstance(tensor, nn.Parameter):
            stand_in = nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
        replaced[id(tensor)] = stand_in
    for leaf in pytree.tree_leaves([vars(child) for child in module.modules()]):
        if isinstance(leaf, torch.Tensor) and id(leaf) not in replaced:
            # The values of a constant decide the traced code (masks, positions), so a real one is kept as it is.
            empty = leaf.is_meta or isinstance(leaf, FakeTensor)
            replaced[id(leaf)] = torch.zeros(leaf.shape, dtype=leaf.dtype) if empty else leaf
    return copy.deepcopy(module, replaced)
