"""Rewrites of the traced graph."""

import operator

import torch
from torch import fx

from dlplacer.frontend.torch.tracing.passes import PASSES, apply_passes

aten = torch.ops.aten


def backward_graph(mask: list[bool]) -> fx.Graph:
    """The backward of a convolution of which all wanted gradients are returned."""
    graph = fx.Graph()
    values = [torch.zeros(2, 4, 5, 5), torch.zeros(2, 3, 5, 5), torch.zeros(4, 3, 1, 1)]
    inputs = [graph.placeholder(name) for name in ("gradient", "input", "weight")]
    for node, value in zip(inputs, values, strict=True):
        node.meta["val"] = value
    call = graph.call_function(
        aten.convolution_backward.default, (*inputs, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)
    )
    results = (values[1], values[2], torch.zeros(4))
    call.meta["val"] = tuple(value if wanted else None for value, wanted in zip(results, mask, strict=True))
    picked = [graph.call_function(operator.getitem, (call, place)) for place in range(3) if mask[place]]
    graph.output(tuple(picked))
    return graph


def masks(graph: fx.Graph) -> list[list[bool]]:
    return [node.args[-1] for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default)]


def test_the_input_gradient_is_split_off_where_there_is_another() -> None:
    for mask, expected in (
        ([True, True, True], [[True, False, False], [False, True, True]]),
        ([True, True, False], [[True, False, False], [False, True, False]]),
        ([True, False, True], [[True, False, False], [False, False, True]]),
        ([True, False, False], [[True, False, False]]),
        ([False, True, True], [[False, True, True]]),
    ):
        graph = backward_graph(mask)
        apply_passes(graph, ["split-convolution-backward"])
        assert masks(graph) == expected


def test_a_split_backward_computes_the_same() -> None:
    whole, split = backward_graph([True, True, True]), backward_graph([True, True, True])
    apply_passes(split, list(PASSES))
    inputs = (torch.randn(2, 4, 5, 5), torch.randn(2, 3, 5, 5), torch.randn(4, 3, 1, 1))
    for ours, theirs in zip(fx.GraphModule({}, split)(*inputs), fx.GraphModule({}, whole)(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
