"""Split ops of a traced graph: every part reads slices, and parts are joined only for readers of the whole."""

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import picked_output
from dlplacer.frontend.torch.splitting.names import OpSplit
from dlplacer.frontend.torch.splitting.pattern import SUM, Pattern, bounds
from dlplacer.frontend.torch.splitting.pieces import Pieces, PieceTable
from dlplacer.frontend.torch.splitting.rules import patterns_of


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
            _split(table, node, pattern_for(node, split), split.parts)
        # What unpacks a split op, or views a value in pieces, needs no change.
        elif node not in table.pieces and not (node.op == "call_function" and table.follow(node)):
            node.args = fx.map_arg(node.args, table.whole)
            node.kwargs = fx.map_arg(dict(node.kwargs), table.whole)
    # Torch takes attention for an op that draws, and keeps it although nobody reads it.
    for node in reversed(nodes):
        if (node.name in wanted or node in table.pieces) and not node.users:
            graph.erase_node(node)


def pattern_for(node: fx.Node, split: OpSplit) -> Pattern:
    """The pattern that a split means.

    Raises
    ------
    CaptureError
        If the op has no such axis, or fewer elements along it than parts.
    """
    patterns = patterns_of(node)
    pattern = patterns.get(split.axis)
    kind = str(node.target)
    if pattern is None:
        cuts = f"along {', '.join(patterns)} only" if patterns else "at all"
        raise CaptureError(
            f"op {split.op!r} ({kind}) cannot be split along {split.axis!r}: its parts would mix; it can be split "
            + cuts.replace("at all", "along no axis")
        )
    extent = pattern.extent(node)
    if extent < split.parts:
        raise CaptureError(
            f"op {split.op!r} ({kind}) cannot be split into {split.parts} parts along {split.axis!r}; it has {extent} "
            "elements there"
        )
    return pattern


def _split(table: PieceTable, node: fx.Node, pattern: Pattern, count: int) -> None:
    extent = pattern.extent(node)
    ranges = bounds(extent, count)
    parts = []
    for number, (begin, end) in enumerate(ranges):
        args = [
            _slices(table, entry, pattern.inputs[index], begin, end)
            if index in pattern.inputs
            else fx.map_arg(entry, table.whole)
            for index, entry in enumerate(node.args)
        ]
        if pattern.amend is not None:
            pattern.amend(args, end - begin, extent)
        kwargs = {
            name: _slices(table, entry, pattern.named[name], begin, end)
            if name in pattern.named
            else fx.map_arg(entry, table.whole)
            for name, entry in node.kwargs.items()
        }
        parts.append(table.insert(node.target, tuple(args), f"{node.name}_part{number}", node, kwargs))
    if not isinstance(node.meta["val"], (tuple, list)):
        table.pieces[node] = _pieces(node, parts, pattern.outputs[0], ranges)
        return
    for user in list(node.users):
        output = picked_output(user)
        dim = pattern.outputs[output]
        table_parts = [
            table.insert(operator.getitem, (part, output), f"{part.name}_{output}", user)
            for part in (parts if dim is not None else parts[:1])
        ]
        if dim is None:
            user.replace_all_uses_with(table_parts[0])
        else:
            table.pieces[user] = _pieces(user, table_parts, dim, ranges)


def _pieces(node: fx.Node, parts: Sequence[fx.Node], dim: int | None, ranges: tuple[tuple[int, int], ...]) -> Pieces:
    assert dim is not None
    if dim != SUM and node.meta["val"].shape[dim] != ranges[-1][1]:
        raise CaptureError(
            f"op {node.name!r}: the parts' results do not make up its result of shape {list(node.meta['val'].shape)}; "
            "please report this model"
        )
    return Pieces(dim, tuple(parts), ranges)


def _slices(table: PieceTable, argument: Any, dim: int, begin: int, end: int) -> Any:
    if isinstance(argument, (list, tuple)):
        return [table.slice(entry, dim, begin, end) for entry in argument]
    return table.slice(argument, dim, begin, end)
