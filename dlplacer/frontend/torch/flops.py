"""FLOPs and bytes of an ATen call, from the shapes of its stand-ins. A multiply-add counts as two FLOPs."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from dlplacer.frontend.torch.nodes import stand_ins
from dlplacer.frontend.torch.tracing.fused_lstm import BACKWARD, FORWARD, lstm_flops

aten = torch.ops.aten


def flops_of(node: fx.Node) -> int:
    """FLOPs of a call; 0 for ops that only move or touch elements: their time is that of their bytes.

    torch's registry has holes, filled here: the CPU kernel of scaled dot product attention (forward and backward),
    products of a matrix or vector with a vector, and grouped products are missing, and the backward of a grouped
    convolution is counted as if it had one group.
    """
    args, kwargs = stand_ins(node)
    packet = getattr(node.target, "overloadpacket", None)
    name = str(packet)
    if name in _PRODUCTS:
        factor, left, right = _PRODUCTS[name]
        return factor * _product_flops(args[left].shape, args[right].shape)
    # torch's formula for the weight gradient ignores groups: a depthwise convolution would be charged channels times
    # over.
    if packet is aten.convolution_backward:
        return _convolution_backward_flops(args)
    # Captured on the CPU, attention is this kernel, which the registry does not know (pytorch#195460): it would be
    # free.
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))  # type: ignore[no-untyped-call]
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))  # type: ignore[no-untyped-call]
    if node.target is FORWARD:
        return lstm_flops(args[0], node.meta["val"][0])
    if node.target is BACKWARD:
        return 2 * lstm_flops(args[0], args[7])
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))
    return 0


_PRODUCTS = {
    "aten.dot": (1, 0, 1),
    "aten.vdot": (1, 0, 1),
    "aten.mv": (1, 0, 1),
    "aten.addmv": (1, 1, 2),
    "aten.addbmm": (1, 1, 2),
    "aten._grouped_mm": (1, 0, 1),
    "transformers.grouped_mm_fallback": (1, 0, 1),
    "transformers.grouped_mm_fallback_backward": (2, 0, 1),
}
"""Op → how many products it makes, and which of its arguments are their factors."""


def _product_flops(left: Sequence[int], right: Sequence[int]) -> int:
    """FLOPs of a product of matrices, or of groups of rows with a matrix each: every row goes with one of them."""
    columns = right[-1] if len(right) > 1 else 1
    batch = right[0] if len(left) == len(right) == 3 else 1
    rows = left[-2] if len(left) > 1 else 1
    return 2 * batch * rows * left[-1] * columns


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes that travel when a tensor is sent: a dimension that is only expanded counts once."""
    sizes = (size for size, stride in zip(tensor.size(), tensor.stride(), strict=True) if stride != 0)
    return int(math.prod(sizes)) * tensor.element_size() if tensor.numel() else 0


def _convolution_backward_flops(args: Any) -> int:
    grad_output, inputs, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    positions = inputs.shape if transposed else grad_output.shape
    forward = 2 * positions[0] * math.prod(positions[2:]) * math.prod(weight.shape)
    return int(forward) * (int(mask[0]) + int(mask[1]))
