"""Stand-ins whose strides are those of real tensors: torch's shape functions differ from its kernels for some layouts.

The adapter to torch's private `FakeTensorMode.dispatch`; known to work with torch 2.11 to 2.13.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.nodes import operators

MISJUDGED = operators("""
native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _batch_norm_with_update_functional _batch_norm_no_update
native_batch_norm_backward batch_norm_backward channel_shuffle native_channel_shuffle max_unpool2d max_unpool3d
log_sigmoid_forward log_sigmoid_backward softplus softplus_backward elu elu_backward hardtanh_backward
hardsigmoid_backward hardswish_backward mse_loss_backward huber_loss_backward smooth_l1_loss_backward
_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data
""")
"""Kernels whose strides torch's shape functions do not foresee, as a sweep over ops and layouts found."""


@contextlib.contextmanager
def real_strides() -> Iterator[None]:
    """Run each kernel of `MISJUDGED` that is given another layout than the usual one on a few real elements.

    Its stand-in has the strides of that result. This holds for the stand-ins of all modes, Dynamo's own included. A
    kernel that cannot run on few elements, as sizes among its arguments do not fit them, keeps the foreseen ones.
    """
    dispatch = FakeTensorMode.dispatch
    known: dict[Any, list[Sequence[int] | None]] = {}

    def watched(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = dispatch(mode, func, types, args, kwargs)
        if func not in MISJUDGED:
            return made
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if all(tensor.dim() < 2 or tensor.is_contiguous() for tensor in given):
            return made
        leaves, nesting = pytree.tree_flatten((args, dict(kwargs or {})))
        known_by = (
            (leaf.dtype, tuple(leaf.shape), leaf.stride()) if isinstance(leaf, torch.Tensor) else str(leaf)
            for leaf in leaves
        )
        key = func, str(nesting), tuple(known_by)
        if key not in known:
            known[key] = _orders(func, leaves, nesting)
        results, shape = pytree.tree_flatten(made)
        orders = [*known[key], *[None] * len(results)]
        return pytree.tree_unflatten([laid(mode, *pair) for pair in zip(results, orders, strict=False)], shape)

    def laid(mode: FakeTensorMode, result: Any, order: Sequence[int] | None) -> Any:
        if order is None or not isinstance(result, FakeTensor) or result.dim() < 2:
            return result
        what = {"dtype": result.dtype, "device": result.device}
        made: Any = dispatch(mode, torch.ops.aten.empty_permuted.default, (), (list(result.shape), list(order)), what)
        return result if made.stride() == result.stride() else made

    with patch.object(FakeTensorMode, "dispatch", watched):
        yield


def _orders(func: Callable[..., Any], leaves: list[Any], nesting: Any) -> list[Sequence[int] | None]:
    """For each result its dimensions from the outermost in memory to the innermost, in a real run on few elements."""
    sizes = sorted({size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape if size > 1})
    small = {size: position for position, size in enumerate(sizes, 2)} | {0: 0, 1: 1}
    try:
        # Neither this mode nor any other sees the run.
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            args, kwargs = pytree.tree_unflatten([_example(leaf, small) for leaf in leaves], nesting)
            results = pytree.tree_leaves(func(*args, **kwargs))
    except Exception:
        return []
    return [_order(result) if isinstance(result, torch.Tensor) else None for result in results]


def _example(leaf: Any, small: Mapping[int, int]) -> Any:
    """A tensor of zeros with few elements that lie in the same order; anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    shape = [small[size] for size in leaf.shape]
    held = [size if stride else 1 for size, stride in zip(shape, leaf.stride(), strict=True)]
    return torch.empty_permuted(held, _order(leaf), dtype=leaf.dtype).zero_().expand(shape)


def _order(tensor: torch.Tensor) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride()[dim], dim))
