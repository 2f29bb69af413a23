"""Every rule along every axis that it offers: the parts give what the whole op gives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.torch.splitting.one_op import run, split_graph, traced
from torch import fx

from dlplacer.frontend.torch.splitting import OpSplit, patterns_of

aten = torch.ops.aten
PARTS = 3
"""Most of the sizes below are no multiple of it."""
CONV = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
POOL = ([3, 3], [2, 2], [1, 1])


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def indices_of(x: torch.Tensor) -> torch.Tensor:
    return aten.max_pool2d_with_indices(x, *POOL)[1]


X, W, G = seeded(6, 4, 7, 7), seeded(8, 4, 3, 3), seeded(6, 8, 7, 7)
C, Q = seeded(4), seeded(3, 4, 5, 8)
HALF = seeded(6, 4, 4, 4)
LOG_SUM, ATTENDED = (aten._scaled_dot_product_flash_attention_for_cpu(Q, Q, Q)[index] for index in (1, 0))


REFUSED = ("native_dropout", "bernoulli", "cumsum", "sort")


def backward(*mask: bool) -> Callable[..., Any]:
    return lambda g, x, w: aten.convolution_backward(g, x, w, [8] if mask[2] else None, *CONV, list(mask))


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], set[str]]] = {
    "convolution": (lambda x, w: aten.convolution(x, w, None, *CONV), (X, W), {"batch", "channel"}),
    "transposed": (
        lambda x, w: aten.convolution(x, w, None, [2, 2], [1, 1], [1, 1], True, [0, 0], 1),
        (X, seeded(4, 6, 3, 3)),
        {"batch", "channel"},
    ),
    "depthwise": (
        lambda x, w: aten.convolution(x, w, None, *CONV[:5], 4),
        (X, seeded(4, 1, 3, 3)),
        {"batch", "channel"},
    ),
    "grouped": (lambda x, w: aten.convolution(x, w, None, *CONV[:5], 2), (X, seeded(8, 2, 3, 3)), {"batch"}),
    "input gradient": (backward(True, False, False), (G, X, W), {"batch", "channel"}),
    "weight and bias gradient": (backward(False, True, True), (G, X, W), {"batch", "channel"}),
    "whole backward": (backward(True, True, True), (G, X, W), {"batch"}),
    "max pool": (lambda x: aten.max_pool2d_with_indices(x, *POOL), (X,), {"batch", "channel"}),
    "max pool backward": (
        lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *POOL, [1, 1], False, i),
        (HALF, X, indices_of(X)),
        {"batch", "channel"},
    ),
    "average pool": (lambda x: aten.avg_pool2d(x, *POOL), (X,), {"batch", "channel"}),
    "average pool backward": (
        lambda g, x: aten.avg_pool2d_backward(g, x, *POOL, False, True, None),
        (HALF, X),
        {"batch", "channel"},
    ),
    "batch norm, training": (
        lambda x, c: aten._native_batch_norm_legit_functional(x, c, c, c, c.abs(), True, 0.1, 1e-3),
        (X, C),
        {"channel"},
    ),
    "batch norm, given statistics": (
        lambda x, c: aten._native_batch_norm_legit_no_training(x, c, c, c, c.abs(), 0.1, 1e-3),
        (X, C),
        {"batch", "channel"},
    ),
    "batch norm backward, training": (
        lambda g, x, c: aten.native_batch_norm_backward(g, x, c, c, c, c, c.abs(), True, 1e-3, [True] * 3),
        (X, X + 1, C),
        {"channel"},
    ),
    "batch norm backward, given statistics": (
        lambda g, x, c: aten.native_batch_norm_backward(g, x, c, c, c.abs(), None, None, False, 1e-3, [True] * 3),
        (X, X + 1, C),
        {"batch", "channel"},
    ),
    "batch norm backward, first layer": (
        lambda g, x, c: [
            each
            for each in aten.native_batch_norm_backward(
                g, x, c, c, c.abs(), None, None, False, 1e-3, [False, True, True]
            )
            if each is not None
        ],
        (X, X + 1, C),
        {"batch", "channel"},
    ),
    "mm": (aten.mm.default, (seeded(6, 4), seeded(4, 8)), {"batch", "channel", "inner"}),
    "addmm, bias": (aten.addmm.default, (seeded(8), seeded(6, 4), seeded(4, 8)), {"batch", "channel"}),
    "addmm, matrix": (aten.addmm.default, (seeded(6, 8), seeded(6, 4), seeded(4, 8)), {"batch", "channel"}),
    "bmm": (aten.bmm.default, (seeded(4, 3, 5), seeded(4, 5, 6)), {"batch", "channel", "dim2"}),
    "baddbmm": (
        aten.baddbmm.default,
        (seeded(4, 1, 6), seeded(4, 3, 5), seeded(4, 5, 6)),
        {"batch", "channel", "dim2"},
    ),
    "softmax": (lambda x: aten._softmax(x, -1, False), (seeded(4, 3, 5),), {"batch", "channel"}),
    "log softmax backward": (
        lambda g, x: aten._log_softmax_backward_data(g, x, 1, torch.float32),
        (seeded(6, 4), seeded(6, 4)),
        {"batch"},
    ),
    "layer norm": (
        lambda x, w: aten.native_layer_norm(x, [5], w, w, 1e-5),
        (seeded(4, 3, 5), seeded(5)),
        {"batch", "channel"},
    ),
    "layer norm backward": (
        lambda g, w, m: aten.native_layer_norm_backward(g, g + 1, [5], m, m.abs(), w, w, [True] * 3),
        (seeded(4, 3, 5), seeded(5), seeded(4, 3, 1)),
        {"batch"},
    ),
    "attention": (
        lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True),
        (Q, Q + 1, Q - 1),
        {"batch", "channel"},
    ),
    "attention backward": (
        lambda g, q, o, s: aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, q, q, o, s, 0.0, False),
        (Q + 1, Q, ATTENDED, LOG_SUM),
        {"batch", "channel"},
    ),
    "attention with a mask of every sample": (
        lambda q, m: aten._scaled_dot_product_flash_attention_for_cpu(q, q + 1, q - 1, attn_mask=m),
        (Q, seeded(3, 1, 5, 5)),
        {"batch", "channel"},
    ),
    "attention with one mask": (
        lambda q, m: aten._scaled_dot_product_flash_attention_for_cpu(q, q + 1, q - 1, attn_mask=m),
        (Q, seeded(5, 5)),
        {"batch", "channel"},
    ),
    "attention of heads in groups": (
        lambda q, k: aten._scaled_dot_product_flash_attention_for_cpu(q, k, k + 1),
        (Q, seeded(3, 2, 5, 8)),
        {"batch"},
    ),
    "attention backward with a mask": (
        lambda g, q, o, s, m: aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, q, q, o, s, 0.0, False, attn_mask=m
        ),
        (Q + 1, Q, ATTENDED, LOG_SUM, seeded(3, 1, 5, 5)),
        {"batch", "channel"},
    ),
    "add, broadcast": (aten.add.Tensor, (seeded(6, 4, 5), seeded(4, 1)), {"batch", "channel", "dim2"}),
    "threshold backward": (
        lambda g, x: aten.threshold_backward(g, x, 0),
        (X, X + 1),
        {"batch", "channel", "dim2", "dim3"},
    ),
    "cast": (lambda x: aten._to_copy(x, dtype=torch.float64), (seeded(4, 6),), {"batch", "channel"}),
    "sum": (lambda x: aten.sum.dim_IntList(x, [0, 2]), (seeded(4, 3, 5),), {"batch", "channel", "dim2"}),
    "mean": (lambda x: aten.mean.dim(x, [2], True), (seeded(4, 3, 5),), {"batch", "channel"}),
    "maximum": (lambda x: aten.amax(x, [1]), (seeded(4, 3, 5),), {"batch", "dim2"}),
    "cat": (lambda a, b: aten.cat([a, b], 1), (seeded(4, 3, 5), seeded(4, 2, 5)), {"batch", "dim2"}),
}


def the_op(graph: fx.Graph) -> fx.Node:
    """The last that can be cut; those before it only prepare its arguments."""
    return [node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload) and patterns_of(node)][-1]


@pytest.mark.parametrize("case", CASES)
def test_axes_are_those_along_which_nothing_mixes(case: str) -> None:
    call, tensors, axes = CASES[case]
    assert set(patterns_of(the_op(traced(call, tensors)))) == axes


@pytest.mark.parametrize(("case", "axis"), [(case, axis) for case in CASES for axis in sorted(CASES[case][2])])
def test_parts_make_the_whole(case: str, axis: str) -> None:
    call, tensors, _ = CASES[case]
    whole = traced(call, tensors)
    op = the_op(whole)
    graph = split_graph(call, tensors, [OpSplit(op.name, axis, PARTS)])
    assert [node.target for node in graph.nodes if node.name.startswith(f"{op.name}_part")].count(op.target) == PARTS
    assert op.name not in [node.name for node in graph.nodes]
    for ours, theirs in zip(run(graph, tensors), run(whole, tensors), strict=True):
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("call", "tensors"),
    [
        (lambda x: aten.native_dropout(x, 0.5, True), (X,)),
        (lambda x: aten.bernoulli(x.abs().clamp(0, 1)), (X,)),
        (lambda x: aten.cumsum(x, 0), (X,)),
        (lambda x: aten.sort(x, 0), (X,)),
    ],
    ids=["dropout", "bernoulli", "cumsum", "sort"],
)
def test_what_draws_or_mixes_offers_no_axis(call: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> None:
    graph = traced(call, tensors)
    (node,) = [node for node in graph.nodes if any(name in str(node.target) for name in REFUSED)]
    assert not patterns_of(node)
