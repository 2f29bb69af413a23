"""Faster ways to call the same kernels: torch's own bindings in place of ``torch.ops``.

A call through ``torch.ops`` boxes its arguments and costs a few microseconds more than one through the bindings that
torch generates for Python. In a step of many small ops that is a tenth of the time. A test holds that every entry
dispatches to the operator that it stands for. Backward operators have no such binding.
"""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

NATIVE: dict[Any, Callable[..., Any]] = {
    aten._log_softmax.default: torch._log_softmax,
    aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
    aten._scaled_dot_product_flash_attention_for_cpu.default: torch._scaled_dot_product_flash_attention_for_cpu,
    aten._softmax.default: torch._softmax,
    aten._softmax_backward_data.default: torch._softmax_backward_data,
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.avg_pool2d.default: torch._C._nn.avg_pool2d,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clone.default: torch.clone,
    aten.constant_pad_nd.default: torch.constant_pad_nd,
    aten.convolution.default: torch.convolution,
    aten.div.Tensor: torch.div,
    aten.embedding.default: torch.embedding,
    aten.exp.default: torch.exp,
    aten.expand.default: torch.Tensor.expand,
    aten.flip.default: torch.flip,
    aten.gather.default: torch.gather,
    aten.gelu.default: torch._C._nn.gelu,
    aten.index_select.default: torch.index_select,
    aten.log.default: torch.log,
    aten.masked_fill.Scalar: torch.masked_fill,
    aten.max_pool2d_with_indices.default: torch._C._nn.max_pool2d_with_indices,
    aten.maximum.default: torch.maximum,
    aten.mean.dim: torch.mean,
    aten.minimum.default: torch.minimum,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.native_layer_norm.default: torch.native_layer_norm,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.relu.default: torch.relu,
    aten.rsqrt.default: torch.rsqrt,
    aten.select.int: torch.select,
    aten.sigmoid.default: torch.sigmoid,
    aten.silu.default: torch._C._nn.silu,
    aten.split.Tensor: torch._C._VariableFunctions.split,  # type: ignore[attr-defined]
    aten.split_with_sizes.default: torch.split_with_sizes,
    aten.sqrt.default: torch.sqrt,
    aten.squeeze.dim: torch.squeeze,
    aten.stack.default: torch.stack,
    aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unbind.int: torch.unbind,
    aten.unsafe_split.Tensor: torch.unsafe_split,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: torch.Tensor.view,
    aten.where.self: torch.where,
}
"""Operator → the binding that calls it with the same arguments in the same order."""


def native(target: Callable[..., Any]) -> Callable[..., Any]:
    """The quickest function that does what a traced call's target does."""
    return NATIVE.get(target, target)
