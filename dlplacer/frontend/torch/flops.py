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
    products of a matrix or vector with a vector, grouped products and linear algebra are missing, and the backward of a
    grouped convolution is counted as if it had one group.
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
    if name in _FACTORIZED:
        (cubed, matrix), *solved = _FACTORIZED[name]
        factored, right = float(args[matrix].numel()), sum(times * args[side].numel() for times, side in solved)
        return round(int(args[matrix].shape[-1]) * float(cubed * factored + right))
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


_FACTORIZED: dict[str, list[tuple[float, int]]] = {
    "aten.linalg_cholesky_ex": [(1 / 3, 0)],
    "aten.linalg_lu_factor_ex": [(2 / 3, 0)],
    "aten._linalg_det": [(2 / 3, 0)],
    "aten._linalg_slogdet": [(2 / 3, 0)],
    "aten.linalg_inv_ex": [(2, 0)],
    "aten._linalg_solve_ex": [(2 / 3, 0), (2, 1)],
    "aten.linalg_lu_solve": [(0, 0), (2, 2)],
    "aten.linalg_solve_triangular": [(0, 0), (1, 1)],
    "aten.cholesky_solve": [(0, 1), (2, 0)],
}
"""Op → FLOPs per n³ of its n × n matrices, which argument these are, FLOPs per n² of the columns that it solves for,
which argument has these (LAPACK Working Note 41, operation counts to leading order)."""


def _product_flops(left: Sequence[int], right: Sequence[int]) -> int:
    """FLOPs of a matrix product, or of a grouped one, in which every row is multiplied by one of several matrices."""
    columns = right[-1] if len(right) > 1 else 1
    batch = right[0] if len(left) == len(right) == 3 else 1
    rows = left[-2] if len(left) > 1 else 1
    return 2 * batch * rows * left[-1] * columns


def bytes_of(node: fx.Node) -> int:
    """Bytes that a call reads and writes, each tensor once; of a table that is looked up in, the rows that it reads."""
    value = node.meta["val"]
    results = value if isinstance(value, (tuple, list)) else (value,)
    written = sum(result.numel() * result.element_size() for result in results if isinstance(result, torch.Tensor))
    name = str(getattr(node.target, "overloadpacket", None))
    if name in _SHAPED_LIKE:
        return written
    sizes = {read: tensor_bytes(read.meta["val"]) for read in node.all_input_nodes}
    if name in _LOOKUPS:
        table, places = node.args[0], node.args[1]
        assert isinstance(table, fx.Node)
        rows = written
        if isinstance(places, fx.Node) and name in _BAGS:
            entry = table.meta["val"]
            rows = places.meta["val"].numel() * math.prod(entry.shape[1:]) * entry.element_size()
        sizes[table] = min(sizes[table], rows)
    return written + sum(sizes.values())


_LIKE = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like"
_NEW = "new_empty new_empty_strided new_zeros new_ones new_full"
_SHAPED_LIKE = frozenset(f"aten.{name}" for name in f"{_LIKE} {_NEW}".split())
"""Ops that take of their first argument its shape or dtype, and no element."""

_BAGS = frozenset(("aten._embedding_bag", "aten._embedding_bag_forward_only"))
_LOOKUPS = _BAGS | {"aten.embedding", "aten.gather", "aten.index", "aten.index_select", "aten.take"}
"""Ops that read of their first argument as much as they return; sums of bags, what they add up."""


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes that travel when a tensor is sent: a dimension that is only expanded counts once."""
    sizes = (size for size, stride in zip(tensor.size(), tensor.stride(), strict=True) if stride != 0)
    return int(math.prod(sizes)) * tensor.element_size() if tensor.numel() else 0


def _convolution_backward_flops(args: Any) -> int:
    grad_output, inputs, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    positions = inputs.shape if transposed else grad_output.shape
    forward = 2 * positions[0] * math.prod(positions[2:]) * math.prod(weight.shape)
    return int(forward) * (int(mask[0]) + int(mask[1]))
