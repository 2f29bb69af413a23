"""Graphs of few calls on real tensors, run whole and split."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dlplacer.frontend.torch.splitting import OpSplit, split_ops

aten = torch.ops.aten


def traced(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> fx.Graph:
    """The graph of calls of ATen ops on tensors, with stand-ins, as a capture has it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph: fx.Graph = make_fx(call, tracing_mode="fake")(*tensors).graph
    return graph


def run(graph: fx.Graph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that a graph returns."""
    found = fx.GraphModule(torch.nn.Module(), graph)(*tensors)
    entries = found if isinstance(found, (tuple, list)) else [found]
    return [entry for entry in entries if isinstance(entry, torch.Tensor)]


def split_graph(call: Callable[..., Any], tensors: Sequence[torch.Tensor], splits: Sequence[OpSplit]) -> fx.Graph:
    """The graph with splits, without what nothing reads."""
    graph = traced(call, tensors)
    split_ops(graph, splits)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def targets(graph: fx.Graph) -> list[str]:
    """The kinds of a graph's calls in order: ``cat``, ``slice``, …"""
    return [
        node.target.__name__.partition(".")[0]
        for node in graph.nodes
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
    ]
