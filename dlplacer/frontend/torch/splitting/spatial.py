"""Cuts of convolutions, pooling and batch norm: tensors of samples × channels × space."""

from typing import Any

import torch
from torch import fx

from dlplacer.frontend.torch.splitting.pattern import SUM, Amend, Pattern, Patterns, argument, is_tensor, value

aten = torch.ops.aten
_BATCH, _CHANNEL = 0, 1


def convolution(node: fx.Node) -> Patterns:
    """Along the samples; along the output channels with slices of the weight; along groups with everything sliced."""
    weight, bias, transposed, groups = (node.args[index] for index in (1, 2, 6, 8))
    yield "batch", Pattern({0: _BATCH}, (_BATCH,))
    biased = {2: 0} if bias is not None else {}
    if groups == 1:
        yield "channel", Pattern({1: 1 if transposed else 0, **biased}, (_CHANNEL,))
    elif not transposed and value(weight).shape[0] == groups == value(node.args[0]).shape[_CHANNEL]:
        yield "channel", Pattern({0: _CHANNEL, 1: 0, **biased}, (_CHANNEL,), _set(8))


def convolution_backward(node: fx.Node) -> Patterns:
    """Along the samples, where weight gradients are sums of parts; else along the channels of the result.

    Those are the input's channels for the input gradient, and the output's for weight and bias gradients.
    """
    transposed, groups = node.args[7], node.args[9]
    of_input, of_weight, of_bias = (bool(wanted) for wanted in argument(node, "output_mask"))
    outputs = (_BATCH if of_input else None, SUM if of_weight else None, SUM if of_bias else None)
    yield "batch", Pattern({0: _BATCH, 1: _BATCH}, outputs)
    if groups != 1:
        return
    rows, columns = (1, 0) if transposed else (0, 1)
    if of_input and not (of_weight or of_bias):
        yield "channel", Pattern({1: _CHANNEL, 2: columns}, (_CHANNEL, None, None))
    if not of_input:
        outputs = (None, rows if of_weight else None, 0 if of_bias else None)
        resize = None if node.args[3] is None else _set(3, listed=True)
        yield "channel", Pattern({0: _CHANNEL, 2: rows}, outputs, resize)


def pool(node: fx.Node) -> Patterns:
    """Forward and backward: samples and channels are independent. Indices count within one channel of one sample."""
    if any(is_tensor(entry) and value(entry).dim() != value(node.args[0]).dim() for entry in node.args):
        return
    spatial = {"1d": 1, "2d": 2, "3d": 3}
    rank = next((2 + count for text, count in spatial.items() if text in str(node.target)), 0)
    if value(node.args[0]).dim() != rank:
        return
    outputs = len(node.meta["val"]) if isinstance(node.meta["val"], (tuple, list)) else 1
    for name, dim in (("batch", _BATCH), ("channel", _CHANNEL)):
        yield name, Pattern({index: dim for index, entry in enumerate(node.args) if is_tensor(entry)}, (dim,) * outputs)


def batch_norm(node: fx.Node) -> Patterns:
    """Cuts per channel, statistics included; along the samples only if the statistics are given."""
    outputs = node.meta["val"]
    per_channel = {index: 0 for index, entry in enumerate(node.args) if index > 0 and is_tensor(entry)}
    dims = tuple(_CHANNEL if index == 0 else 0 if entry.numel() else None for index, entry in enumerate(outputs))
    yield "channel", Pattern({0: _CHANNEL, **per_channel}, dims)
    # Statistics of a part of the samples are not those of the batch: the parts would compute another function.
    uses_given = "no_training" in str(node.target) or not argument(node, "training")
    if uses_given and len(outputs) <= 3:
        yield "batch", Pattern({0: _BATCH}, (_BATCH, None, None))


def batch_norm_backward(node: fx.Node) -> Patterns:
    """Per channel; along the samples only where the statistics were given."""
    per_channel = {index: 0 for index, entry in enumerate(node.args) if index > 1 and is_tensor(entry)}
    yield "channel", Pattern({0: _CHANNEL, 1: _CHANNEL, **per_channel}, _computed(node, (_CHANNEL, 0, 0)))
    if not argument(node, "train"):
        yield "batch", Pattern({0: _BATCH, 1: _BATCH}, _computed(node, (_BATCH, SUM, SUM)))


def group_norm(node: fx.Node) -> Patterns:
    """Along the samples."""
    yield "batch", Pattern({0: _BATCH}, (_BATCH, _BATCH, _BATCH), _set(3))


def group_norm_backward(node: fx.Node) -> Patterns:
    """Along the samples, where the gradients of weight and bias are sums of parts."""
    dims = _computed(node, (_BATCH, SUM, SUM))
    yield "batch", Pattern(dict.fromkeys((0, 1, 2, 3), _BATCH), dims, _set(5))


def _computed(node: fx.Node, dims: tuple[int, ...]) -> tuple[int | None, ...]:
    wanted = zip(dims, argument(node, "output_mask"), strict=True)
    return tuple(dim if computed else None for dim, computed in wanted)


def _set(index: int, listed: bool = False) -> Amend:
    """Put the size of the part in the place of an argument, or of a list of one size."""

    def amend(args: list[Any], size: int, whole: int) -> None:
        args[index] = [size] if listed else size

    return amend


_POOLS = (
    aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.max_pool3d_with_indices.default,
    aten.max_pool3d_with_indices_backward.default,
    aten.avg_pool1d.default,
    aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default,
    aten.avg_pool3d.default,
    aten.avg_pool3d_backward.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d_backward.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool2d_backward.default,
)

RULES = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten._native_batch_norm_legit_functional.default: batch_norm,
    aten._native_batch_norm_legit_no_training.default: batch_norm,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    **dict.fromkeys(_POOLS, pool),
}
