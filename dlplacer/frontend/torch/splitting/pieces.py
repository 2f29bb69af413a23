"""Values of the traced graph that lie in pieces, and the slices and joins by which any op can read them."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dlplacer.frontend.torch.nodes import behind_views, stand_ins
from dlplacer.frontend.torch.splitting.pattern import SUM
from dlplacer.frontend.torch.splitting.views import view_of_piece
from dlplacer.frontend.torch.tracing.quiet import undisturbed

aten = torch.ops.aten
ORIGIN = "dlplacer_origin"
"""Key of a node's meta: the op that a split made it from."""


@dataclass(frozen=True)
class Pieces:
    """A tensor as several nodes: side by side along a dimension, each with its begin and end, or summands of it."""

    dim: int
    nodes: tuple[fx.Node, ...]
    bounds: tuple[tuple[int, int], ...]


class PieceTable:
    """The values of a graph that are in pieces. It inserts nodes in front of `reader`, each only once."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.reader = graph.output_node()
        self.pieces: dict[fx.Node, Pieces] = {}
        self._wholes: dict[fx.Node, fx.Node] = {}
        self._slices: dict[tuple[fx.Node, int, int, int], fx.Node] = {}

    def insert(self, target: Any, args: tuple[Any, ...], name: str, like: fx.Node, kwargs: Any = None) -> fx.Node:
        """A new call before the reader, with its stand-in; it belongs to the op `like`."""
        with self.graph.inserting_before(self.reader):
            node = self.graph.create_node("call_function", target, args, dict(kwargs or {}), name)
        node.meta = {key: entry for key, entry in like.meta.items() if key not in ("val", "tensor_meta", "desc")}
        node.meta.setdefault(ORIGIN, behind_views(like).name)
        node.meta["val"] = stand_in(node)
        return node

    def whole(self, node: fx.Node) -> fx.Node:
        """The node that holds the whole value: itself, or its pieces joined."""
        found = self.pieces.get(node)
        if found is None:
            return node
        if node not in self._wholes:
            parts = found.nodes
            joined = self._added(parts, node) if found.dim == SUM else self._joined(parts, found.dim, node, "joined")
            self._wholes[node] = joined
        return self._wholes[node]

    def slice(self, node: fx.Node, dim: int, begin: int, end: int) -> fx.Node:
        """The node that holds a slice of a value, from its pieces where it is in pieces."""
        key = node, dim, begin, end
        if key not in self._slices:
            self._slices[key] = self._sliced(node, dim, begin, end)
        return self._slices[key]

    def follow(self, node: fx.Node) -> bool:
        """Take a view of each piece of a value, or each of several views; True if possible."""
        source = node.args[0] if node.args else None
        found = self.pieces.get(source) if isinstance(source, fx.Node) else None
        if found is None or found.dim == SUM or node.target is operator.getitem:
            return False
        views = [view_of_piece(node, found.dim, piece) for piece in found.bounds]
        made = []
        for number, (part, view) in enumerate(zip(found.nodes, views, strict=True)):
            if view is None:
                return False
            try:
                # A view that is legal of the whole may not be of a part, whose strides differ; then the whole is
                # joined.
                made.append(self.insert(node.target, (part, *view.args), f"{node.name}_part{number}", node))
            except (RuntimeError, ValueError):
                return False
        kept = [view for view in views if view is not None]
        dim, bounds = kept[0].dim, tuple(view.bounds for view in kept)
        if isinstance(node.meta["val"], torch.Tensor):
            self.pieces[node] = Pieces(dim, tuple(made), bounds)
            return True
        for user in list(node.users):
            picked = [
                self.insert(operator.getitem, (part, user.args[1]), f"{part.name}_{user.args[1]}", user)
                for part in made
            ]
            self.pieces[user] = Pieces(dim, tuple(picked), bounds)
        return True

    def _sliced(self, node: fx.Node, dim: int, begin: int, end: int) -> fx.Node:
        found = self.pieces.get(node)
        if found is None:
            whole = begin == 0 and end == node.meta["val"].shape[dim]
            return node if whole else self._slice_call(node, dim, begin, end)
        where = f"dim{dim}_{begin}_{end}"
        if found.dim == SUM:
            return self._added([self._part(part, dim, begin, end) for part in found.nodes], node)
        if found.dim != dim:
            return self._joined([self._part(part, dim, begin, end) for part in found.nodes], found.dim, node, where)
        overlaps = [
            self._part(part, dim, max(begin, low) - low, min(end, high) - low)
            for part, (low, high) in zip(found.nodes, found.bounds, strict=True)
            if low < end and begin < high
        ]
        return overlaps[0] if len(overlaps) == 1 else self._joined(overlaps, dim, node, where)

    def _part(self, part: fx.Node, dim: int, begin: int, end: int) -> fx.Node:
        if begin == 0 and end == part.meta["val"].shape[dim]:
            return part
        return self._slice_call(part, dim, begin, end)

    def _slice_call(self, node: fx.Node, dim: int, begin: int, end: int) -> fx.Node:
        key = node, dim, begin, end
        if key not in self._slices:
            args = (node, dim, begin, end)
            self._slices[key] = self.insert(aten.slice.Tensor, args, f"{node.name}_dim{dim}_{begin}_{end}", node)
        return self._slices[key]

    def _added(self, parts: Sequence[fx.Node], like: fx.Node) -> fx.Node:
        total = parts[0]
        for part in parts[1:]:
            total = self.insert(aten.add.Tensor, (total, part), f"{like.name}_sum", like)
        return total

    def _joined(self, parts: Sequence[fx.Node], dim: int, like: fx.Node, suffix: str) -> fx.Node:
        """The parts side by side, in the memory layout of the value that they are parts of."""
        name = f"{like.name}_{suffix}"
        order = memory_order(like.meta["val"])
        # cat need not keep a permuted layout; turned before and back after, the whole has the strides that later views
        # rely on.
        if order == sorted(order):
            return self.insert(aten.cat.default, (list(parts), dim), name, like)
        turned = [self.insert(aten.permute.default, (part, order), f"{part.name}_turned", like) for part in parts]
        joined = self.insert(aten.cat.default, (turned, order.index(dim)), f"{name}_turned", like)
        back = [order.index(place) for place in range(len(order))]
        return self.insert(aten.permute.default, (joined, back), name, like)


def memory_order(tensor: torch.Tensor) -> list[int]:
    """The dimensions of a tensor from the slowest to the fastest in memory."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))


def stand_in(node: fx.Node) -> Any:
    """The result of a call on the stand-ins of its arguments."""
    tensors = [entry.meta["val"] for entry in node.all_input_nodes]
    args, kwargs = stand_ins(node)
    assert callable(node.target)
    if not tensors or not isinstance(tensors[0], torch._subclasses.fake_tensor.FakeTensor):
        return node.target(*args, **kwargs)
    with undisturbed(), torch.no_grad(), tensors[0].fake_mode:
        return node.target(*args, **kwargs)
