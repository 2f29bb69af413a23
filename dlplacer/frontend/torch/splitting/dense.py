"""Cuts of matrix products, attention, softmax, layer norm, embeddings: rows × columns, with batches before them."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import fx

from dlplacer.frontend.torch.splitting.pattern import SUM, Pattern, Patterns, argument, axis_name, value

aten = torch.ops.aten


def mm(node: fx.Node) -> Patterns:
    """Rows of the left, columns of the right, or along the inner dimension as a sum of parts."""
    yield "batch", Pattern({0: 0}, (0,))
    yield "channel", Pattern({1: 1}, (1,))
    yield "inner", Pattern({0: 1, 1: 0}, (SUM,))


def addmm(node: fx.Node) -> Patterns:
    """Rows of the left or columns of the right, with the bias sliced if it is not broadcast."""
    yield "batch", Pattern({1: 0, **_broadcast(node, 0)}, (0,))
    yield "channel", Pattern({2: 1, **_broadcast(node, 1)}, (1,))


def bmm(node: fx.Node) -> Patterns:
    """Along the batch, rows of the left, or columns of the right."""
    yield "batch", Pattern({0: 0, 1: 0}, (0,))
    yield "channel", Pattern({0: 1}, (1,))
    yield "dim2", Pattern({1: 2}, (2,))


def baddbmm(node: fx.Node) -> Patterns:
    """As a batched product, with the first argument sliced if it is not broadcast."""
    yield "batch", Pattern({1: 0, 2: 0, **_broadcast(node, 0)}, (0,))
    yield "channel", Pattern({1: 1, **_broadcast(node, 1)}, (1,))
    yield "dim2", Pattern({2: 2, **_broadcast(node, 2)}, (2,))


def softmax(node: fx.Node) -> Patterns:
    """Along every dimension but the normalized one; forward reads one tensor, backward two of one shape."""
    tensor = value(node.args[0])
    normalized = argument(node, "dim") % max(tensor.dim(), 1)
    backward = "backward" in str(node.target)
    for dim in (dim for dim in range(tensor.dim()) if dim != normalized):
        yield axis_name(dim), Pattern({0: dim, 1: dim} if backward else {0: dim}, (dim,))


def layer_norm(node: fx.Node) -> Patterns:
    """Along the dimensions that are not normalized."""
    for dim in range(value(node.args[0]).dim() - len(argument(node, "normalized_shape"))):
        yield axis_name(dim), Pattern({0: dim}, (dim, dim, dim))


def layer_norm_backward(node: fx.Node) -> Patterns:
    """Along the samples; gradients of weight and bias are sums of parts.

    Not along other dimensions: the CPU kernel reads slices of mean and deviation as if they were contiguous.
    """
    if value(node.args[0]).dim() > len(argument(node, "normalized_shape")):
        computed = zip((0, SUM, SUM), node.meta["val"], strict=True)
        outputs = tuple(None if entry is None else place for place, entry in computed)
        yield "batch", Pattern(dict.fromkeys((0, 1, 3, 4), 0), outputs)


def _of_attention(node: fx.Node, tensors: Iterable[int], results: int) -> Patterns:
    """Along the samples, and along the heads where every query head has its own; where nothing is drawn."""
    mask = argument(node, "attn_mask")
    if argument(node, "dropout_p"):
        return
    sizes = [value(node.args[index]).shape for index in tensors]
    for name, dim in (("batch", 0), ("channel", 1)):
        if any(size[dim] != sizes[0][dim] for size in sizes):
            continue
        own = -1 if mask is None else dim - 4 + value(mask).dim()
        sliced = {"attn_mask": own} if own >= 0 and value(mask).shape[own] > 1 else {}
        yield name, Pattern(dict.fromkeys(tensors, dim), (dim,) * results, named=sliced)


attention: Callable[[fx.Node], Patterns] = partial(_of_attention, tensors=(0, 1, 2), results=2)
attention_backward: Callable[[fx.Node], Patterns] = partial(_of_attention, tensors=range(6), results=3)


def embedding(node: fx.Node) -> Patterns:
    """Along the indices, or along the columns of the table."""
    dims = value(node.args[1]).dim()
    for dim in range(dims):
        yield axis_name(dim), Pattern({1: dim}, (dim,))
    yield axis_name(dims), Pattern({0: 1}, (dims,))


def embedding_backward(node: fx.Node) -> Patterns:
    """Along the columns of the table: along the indices every part would be as large as the whole table."""
    dims = value(node.args[1]).dim()
    if not argument(node, "scale_grad_by_freq"):
        yield "channel", Pattern({0: dims}, (1,))


def _broadcast(node: fx.Node, dim: int) -> dict[int, int]:
    """The slices of the first argument, which broadcasts to the result, for a cut along a dimension of the result."""
    added, result = value(node.args[0]), node.meta["val"]
    own = dim - (result.dim() - added.dim())
    return {0: own} if own >= 0 and added.shape[own] == result.shape[dim] else {}


RULES = {
    aten.mm.default: mm,
    aten.addmm.default: addmm,
    aten.bmm.default: bmm,
    aten.baddbmm.default: baddbmm,
    aten._softmax.default: softmax,
    aten._log_softmax.default: softmax,
    aten._softmax_backward_data.default: softmax,
    aten._log_softmax_backward_data.default: softmax,
    aten.native_layer_norm.default: layer_norm,
    aten.native_layer_norm_backward.default: layer_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
    aten.embedding.default: embedding,
    aten.embedding_dense_backward.default: embedding_backward,
}
