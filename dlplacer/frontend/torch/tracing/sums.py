"""Sums of a traced graph, each with all its terms, however it is parenthesised."""

from typing import Any

import torch
from torch import fx

from dlplacer.frontend.torch.splitting.pieces import stand_in

aten = torch.ops.aten


def sums_of(graph: fx.Graph) -> list[fx.Node]:
    """The additions of two tensors of one shape and dtype that are no summand of another."""
    return [node for node in graph.nodes if _is_addition(node) and not _is_inner(node)]


def terms_of(total: fx.Node) -> list[fx.Node]:
    """The terms of a sum in their written order, with nested sums resolved."""
    found, open_nodes = [], list(reversed(total.all_input_nodes))
    while open_nodes:
        node = open_nodes.pop()
        if _is_addition(node) and len(node.users) == 1:
            open_nodes += reversed(node.all_input_nodes)
        else:
            found.append(node)
    return found


def call_like(graph: fx.Graph, target: Any, args: tuple[Any, ...], like: fx.Node) -> fx.Node:
    """A new call, with its stand-in, which belongs where another one does."""
    node = graph.create_node("call_function", target, args)
    node.meta = {key: entry for key, entry in like.meta.items() if key not in ("val", "tensor_meta", "desc")}
    node.meta["val"] = stand_in(node)
    return node


def _is_addition(node: fx.Node) -> bool:
    """True if it adds two different tensors of one shape and dtype."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
        return False
    values = [read.meta["val"] for read in (*node.all_input_nodes, node)]
    return len({(value.shape, value.dtype) for value in values}) == 1


def _is_inner(node: fx.Node) -> bool:
    return len(node.users) == 1 and _is_addition(next(iter(node.users)))
