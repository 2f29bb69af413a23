"""Split ops of a traced graph: every part reads slices, and parts are joined only for readers of the whole.

A graph's list of rewrites records a split by its name, as in ``split:convolution_4:batch:2``.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import behind_views, picked_output, stand_ins
from dlplacer.frontend.torch.splitting.rules import SUM, Pattern, patterns_of
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
            node = call_like(self.graph, target, args, like.meta, name, kwargs)
        node.meta.setdefault(ORIGIN, behind_views(like).name)
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

    def _sliced(self, node: fx.Node, dim: int, begin: int, end: int) -> fx.Node:
        found = self.pieces.get(node)
        where = f"dim{dim}_{begin}_{end}"
        if found is None:
            if begin == 0 and end == node.meta["val"].shape[dim]:
                return node
            return self.insert(aten.slice.Tensor, (node, dim, begin, end), f"{node.name}_{where}", node)
        if found.dim == SUM:
            return self._added([self.slice(part, dim, begin, end) for part in found.nodes], node)
        if found.dim != dim:
            return self._joined([self.slice(part, dim, begin, end) for part in found.nodes], found.dim, node, where)
        overlaps = [
            self.slice(part, dim, max(begin, low) - low, min(end, high) - low)
            for part, (low, high) in zip(found.nodes, found.bounds, strict=True)
            if low < end and begin < high
        ]
        return overlaps[0] if len(overlaps) == 1 else self._joined(overlaps, dim, node, where)

    def _added(self, parts: Sequence[fx.Node], like: fx.Node) -> fx.Node:
        total = parts[0]
        for part in parts[1:]:
            total = self.insert(aten.add.Tensor, (total, part), f"{like.name}_sum", like)
        return total

    def _joined(self, parts: Sequence[fx.Node], dim: int, like: fx.Node, suffix: str) -> fx.Node:
        """The parts side by side, in the memory layout of the value that they are parts of."""
        name = f"{like.name}_{suffix}"
        strides = like.meta["val"].stride()
        order = sorted(range(len(strides)), key=lambda place: (-strides[place], place))
        # cat need not keep a permuted layout; turned before and back after, the whole has the strides that later views
        # rely on.
        if order == sorted(order):
            return self.insert(aten.cat.default, (list(parts), dim), name, like)
        turned = [self.insert(aten.permute.default, (part, order), f"{part.name}_turned", like) for part in parts]
        joined = self.insert(aten.cat.default, (turned, order.index(dim)), f"{name}_turned", like)
        back = [order.index(place) for place in range(len(order))]
        return self.insert(aten.permute.default, (joined, back), name, like)


def call_like(
    graph: fx.Graph, target: Any, args: tuple[Any, ...], like: Mapping[str, Any], name: str = "", kwargs: Any = None
) -> fx.Node:
    """A new call, with its stand-in, that belongs where another one does, whose meta is given."""
    node = graph.create_node("call_function", target, args, dict(kwargs or {}), name or None)
    node.meta = {key: entry for key, entry in like.items() if key not in ("val", "tensor_meta", "desc")}
    node.meta["val"] = stand_in(node)
    return node


def stand_in(node: fx.Node) -> Any:
    """The result of a call on the stand-ins of its arguments."""
    tensors = [entry.meta["val"] for entry in node.all_input_nodes]
    args, kwargs = stand_ins(node)
    assert callable(node.target)
    if not tensors or not isinstance(tensors[0], torch._subclasses.fake_tensor.FakeTensor):
        return node.target(*args, **kwargs)
    with undisturbed(), torch.no_grad(), tensors[0].fake_mode:
        return node.target(*args, **kwargs)


_SPLIT = re.compile(r"split:(?P<op>[^:\s]+):(?P<axis>[a-z]+\d*):(?P<parts>[2-9]|[1-9]\d+)")


@dataclass(frozen=True, order=True)
class OpSplit:
    """An op, the axis along which it is cut, one of `patterns_of`, and the number of its parts."""

    op: str
    axis: str
    parts: int = 2

    def __str__(self) -> str:
        return f"split:{self.op}:{self.axis}:{self.parts}"


def is_split(rewrite: str) -> bool:
    """True if the name of a rewrite means the split of one op."""
    return rewrite.startswith("split:")


def parse_splits(rewrites: Sequence[str]) -> tuple[OpSplit, ...]:
    """The splits among the names of rewrites, in order; CaptureError if one makes no sense, or an op comes twice."""
    splits: dict[str, OpSplit] = {}
    for rewrite in filter(is_split, rewrites):
        match = _SPLIT.fullmatch(rewrite)
        if match is None:
            raise CaptureError(
                f"rewrite {rewrite!r} is not understood; write split:OP:AXIS:PARTS, as in split:mm:batch:2"
            )
        if match["op"] in splits:
            raise CaptureError(f"op {match['op']!r} is split twice; split it once, into more parts")
        splits[match["op"]] = OpSplit(match["op"], match["axis"], int(match["parts"]))
    return tuple(splits.values())


def split_ops(graph: fx.Graph, splits: Sequence[OpSplit]) -> None:
    """Cut the named ops. Parts pass their results on to parts directly where they are cut alike.

    Raises
    ------
    CaptureError
        If an op does not exist or cannot be split along the axis; the message lists the axes that it has.
    """
    wanted = {split.op: split for split in splits}
    nodes = list(graph.nodes)
    missing = sorted(wanted.keys() - {node.name for node in nodes if node.op == "call_function"})
    if missing:
        raise CaptureError(f"there is no op {missing[0]!r} to split; use an id of the captured graph")
    table = PieceTable(graph)
    # In graph order: a split op has its pieces in the table before any of its readers is looked at.
    for node in nodes:
        table.reader = node
        split = wanted.get(node.name)
        if split is not None:
            _split(table, node, _pattern(node, split), split.parts)
        # What unpacks a split op needs no change.
        elif node not in table.pieces:
            node.args = fx.map_arg(node.args, table.whole)
            node.kwargs = fx.map_arg(dict(node.kwargs), table.whole)
    # Torch takes attention for an op that draws, and keeps it although nobody reads it.
    for node in reversed(nodes):
        if (node.name in wanted or node in table.pieces) and not node.users:
            graph.erase_node(node)


def _pattern(node: fx.Node, split: OpSplit) -> Pattern:
    """The pattern that a split means; CaptureError if the op has no such axis, or fewer elements there than parts."""
    patterns = patterns_of(node)
    pattern = patterns.get(split.axis)
    kind = str(node.target)
    if pattern is None:
        raise CaptureError(
            f"op {split.op!r} ({kind}) cannot be split along {split.axis!r}: its parts would mix; it can be split "
            + (f"along {', '.join(patterns)} only" if patterns else "along no axis")
        )
    if (extent := pattern.extent(node)) < split.parts:
        raise CaptureError(
            f"op {split.op!r} ({kind}) cannot be split into {split.parts} parts along {split.axis!r}; it has {extent} "
            "elements there"
        )
    return pattern


def _split(table: PieceTable, node: fx.Node, pattern: Pattern, count: int) -> None:
    # The first parts are longer by one where the dimension does not divide evenly.
    size, longer = divmod(pattern.extent(node), count)
    ranges = tuple(pairwise(number * size + min(number, longer) for number in range(count + 1)))
    parts = []
    for number, (begin, end) in enumerate(ranges):
        args = [_read(table, given, pattern.inputs.get(index), begin, end) for index, given in enumerate(node.args)]
        if pattern.size_at is not None:
            args[pattern.size_at] = [end - begin] if isinstance(args[pattern.size_at], list) else end - begin
        kwargs = {name: _read(table, given, pattern.named.get(name), begin, end) for name, given in node.kwargs.items()}
        parts.append(table.insert(node.target, tuple(args), f"{node.name}_part{number}", node, kwargs))
    if not isinstance(node.meta["val"], (tuple, list)):
        table.pieces[node] = _pieces(node, parts, pattern.outputs[0], ranges)
        return
    for user in list(node.users):
        output = picked_output(user)
        dim = pattern.outputs[output]
        picked = [
            table.insert(operator.getitem, (part, output), f"{part.name}_{output}", user)
            for part in (parts if dim is not None else parts[:1])
        ]
        if dim is None:
            user.replace_all_uses_with(picked[0])
        else:
            table.pieces[user] = _pieces(user, picked, dim, ranges)


def _read(table: PieceTable, given: Any, dim: int | None, begin: int, end: int) -> Any:
    """The piece of an argument that a part reads: a slice, of each tensor of a list too, or all of it."""
    if dim is None:
        return fx.map_arg(given, table.whole)
    return fx.map_arg(given, lambda node: table.slice(node, dim, begin, end))


def _pieces(node: fx.Node, parts: Sequence[fx.Node], dim: int | None, ranges: tuple[tuple[int, int], ...]) -> Pieces:
    assert dim is not None
    if dim != SUM and node.meta["val"].shape[dim] != ranges[-1][1]:
        raise CaptureError(
            f"op {node.name!r}: the parts' results do not make up its result of shape {list(node.meta['val'].shape)}; "
            "please report this model"
        )
    return Pieces(dim, tuple(parts), ranges)
