"""Cuts of ops that treat elements alike: arithmetic, activations, reductions, concatenation, padding."""

import torch
from torch import fx

from dlplacer.frontend.torch.splitting.pattern import SUM, Pattern, Patterns, argument, axis_name, is_tensor, value

aten = torch.ops.aten

POINTWISE = frozenset(
    {
        aten._to_copy.default,
        aten.hardtanh_backward.default,
        aten.leaky_relu_backward.default,
        aten.hardswish_backward.default,
        aten.hardsigmoid_backward.default,
        aten.softplus_backward.default,
        aten.elu_backward.default,
    }
)
"""Ops that work element by element although torch does not tag them so."""


def pointwise(node: fx.Node) -> Patterns:
    """Along every dimension of the result, with tensors sliced if they are not broadcast."""
    result = node.meta["val"]
    if not isinstance(result, torch.Tensor) or any(is_tensor(entry) for entry in node.kwargs.values()):
        return
    tensors = {index: value(entry) for index, entry in enumerate(node.args) if is_tensor(entry)}
    for dim, size in enumerate(result.shape):
        own = {index: dim - (result.dim() - tensor.dim()) for index, tensor in tensors.items()}
        sliced = {index: place for index, place in own.items() if place >= 0 and tensors[index].shape[place] == size}
        if sliced:
            yield axis_name(dim), Pattern(sliced, (dim,))


def reduction(node: fx.Node) -> Patterns:
    """Along the dimensions that stay; a sum also along those that it reduces, as a sum of parts."""
    tensor, listed = value(node.args[0]), argument(node, "dim")
    dims = tensor.dim()
    reduced = {dim % dims for dim in listed} if listed and dims else set(range(dims))
    sums = node.target is aten.sum.dim_IntList
    for dim in range(dims):
        if dim not in reduced:
            left = dim if argument(node, "keepdim") else dim - sum(other < dim for other in reduced)
            yield axis_name(dim), Pattern({0: dim}, (left,))
        elif sums:
            yield axis_name(dim), Pattern({0: dim}, (SUM,))


def concatenation(node: fx.Node) -> Patterns:
    """Along every dimension but the one along which it joins."""
    result, joined = node.meta["val"], argument(node, "dim") % node.meta["val"].dim()
    tensors = node.args[0]
    assert isinstance(tensors, (list, tuple))
    if any(value(tensor).dim() != result.dim() for tensor in tensors):
        return
    for dim in (dim for dim in range(result.dim()) if dim != joined):
        yield axis_name(dim), Pattern({0: dim}, (dim,))


def padding(node: fx.Node) -> Patterns:
    """Along the dimensions that are not padded."""
    dims = value(node.args[0]).dim() - len(argument(node, "pad")) // 2
    for dim in range(dims):
        yield axis_name(dim), Pattern({0: dim}, (dim,))


RULES = {
    aten.sum.dim_IntList: reduction,
    aten.mean.dim: reduction,
    aten.amax.default: reduction,
    aten.amin.default: reduction,
    aten.cat.default: concatenation,
    aten.constant_pad_nd.default: padding,
}
