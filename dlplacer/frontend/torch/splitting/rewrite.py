"""Split ops of a traced graph: every part reads slices, and parts are joined only for readers of the whole.

A graph's list of rewrites records a split by its name, as in ``split:convolution_4:batch:2``.
"""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import picked_output
from dlplacer.frontend.torch.splitting.pieces import Pieces, PieceTable
from dlplacer.frontend.torch.splitting.rules import SUM, Pattern, patterns_of

_SPLIT = re.compile(r"split:(?P<op>[^:\s]+):(?P<axis>[a-z]+\d*):(?P<parts>\d+)")


@dataclass(frozen=True, order=True)
class OpSplit:
    """An op, the axis along which it is cut, one of `patterns_of`, and the number of its parts."""

    op: str
    axis: str
    parts: int = 2

    def __post_init__(self) -> None:
        if self.parts < 2:
            raise CaptureError(f"op {self.op!r} cannot be split into {self.parts} parts; give at least 2")

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
        # What unpacks a split op, or views a value in pieces, needs no change.
        elif node not in table.pieces and not (node.op == "call_function" and table.follow(node)):
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
