"""Faster ways to call the same kernels: torch's own bindings in place of ``torch.ops``.

A call through ``torch.ops`` boxes its arguments and costs a few microseconds more than one through the bindings that
torch generates for Python. In a step of many small ops that is a tenth of the time. A test holds that every entry
dispatches to the operator that it stands for.
"""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

NATIVE: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clone.default: torch.clone,
    aten.convolution.default: torch.convolution,
    aten.div.Tensor: torch.div,
    aten.embedding.default: torch.embedding,
    aten.exp.default: torch.exp,
    aten.expand.default: torch.Tensor.expand,
    aten.mean.dim: torch.mean,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.native_layer_norm.default: torch.native_layer_norm,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.relu.default: torch.relu,
    aten.select.int: torch.select,
    aten.sigmoid.default: torch.sigmoid,
    aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unsafe_split.Tensor: torch.unsafe_split,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: torch.Tensor.view,
}
"""Operator → the binding that calls it with the same arguments in the same order."""


def native(target: Callable[..., Any]) -> Callable[..., Any]:
    """The quickest function that does what a traced call's target does."""
    if target in NATIVE:
        return NATIVE[target]
    return target._op if isinstance(target, torch._ops.OpOverload) else target
