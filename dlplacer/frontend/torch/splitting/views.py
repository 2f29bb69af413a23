"""A view of a tensor in pieces: where it keeps the pieces apart, it is taken of each piece, at no cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


@dataclass(frozen=True)
class PieceView:
    """A view of one piece.

    Attributes
    ----------
    dim
        The dimension of the view along which the pieces lie side by side.
    bounds
        Begin and end of the piece in that dimension.
    args
        Arguments of the call behind its first.
    """

    dim: int
    bounds: tuple[int, int]
    args: tuple[Any, ...]


Rule = Callable[[Sequence[int], Sequence[int], tuple[Any, ...], int, tuple[int, int]], PieceView | None]
"""(shape read, shape of the view, arguments behind the first, dimension, bounds of the piece) → view of the piece."""


def view_of_piece(node: fx.Node, dim: int, piece: tuple[int, int]) -> PieceView | None:
    """How a view is taken of a piece of the tensor that it reads; None if it mixes pieces."""
    rule = _RULES.get(node.target)
    if rule is None or node.kwargs:
        return None
    source, made = node.args[0], node.meta["val"]
    assert isinstance(source, fx.Node)
    first = made[0] if isinstance(made, (tuple, list)) else made
    return rule(source.meta["val"].shape, first.shape, node.args[1:], dim, piece)


def _same(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView:
    return PieceView(dim, piece, args)


def _transpose(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView:
    first, second = (args[0] % len(read), args[1] % len(read)) if args else (0, len(read) - 1)
    return PieceView({first: second, second: first}.get(dim, dim), piece, args)


def _permute(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView:
    order = [entry % len(read) for entry in args[0]]
    return PieceView(order.index(dim), piece, args)


def _unsqueeze(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView:
    return PieceView(dim + (args[0] % len(made) <= dim), piece, args)


def _squeeze(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView | None:
    listed = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    gone = {entry % len(read) for entry in listed if read[entry % len(read)] == 1}
    if any(entry % len(read) == dim for entry in listed):
        return None
    return PieceView(dim - sum(entry < dim for entry in gone), piece, args)


def _select(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView | None:
    picked = args[0] % len(read)
    return None if picked == dim else PieceView(dim - (picked < dim), piece, args)


def _slice(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView | None:
    sliced = args[0] % len(read) if args else 0
    return None if sliced == dim else PieceView(dim, piece, args)


def _divided(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView | None:
    """All results of a division into several along another dimension."""
    along = args[1] % len(read) if len(args) > 1 else 0
    return None if along == dim else PieceView(dim, piece, args)


def _unbound(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView | None:
    along = args[0] % len(read) if args else 0
    return None if along == dim else PieceView(dim - (along < dim), piece, args)


def _expand(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView | None:
    place = dim + len(made) - len(read)
    if read[dim] != made[place]:
        return None
    return PieceView(place, piece, (_with(made, place, piece[1] - piece[0]), *args[1:]))


def _view(read: Sequence[int], made: Sequence[int], args: Any, dim: int, piece: tuple[int, int]) -> PieceView | None:
    """The piece stays one piece if the dimensions before it hold as many elements, and its ends fall on whole rows."""
    if 0 in made:
        return None
    before, inner = math.prod(read[:dim]), math.prod(read[dim + 1 :])
    for place in range(len(made)):
        if math.prod(made[:place]) == before and made[place] > 1:
            row = math.prod(made[place + 1 :])
            if any(end * inner % row for end in piece):
                return None
            begin, end = (end * inner // row for end in piece)
            return PieceView(place, (begin, end), (_with(made, place, end - begin),))
    return None


def _with(shape: Sequence[int], place: int, size: int) -> list[int]:
    return [size if index == place else int(entry) for index, entry in enumerate(shape)]


_RULES: dict[Any, Rule] = {
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.t.default: _transpose,
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _divided,
    aten.split_with_sizes.default: _divided,
    aten.unbind.int: _unbound,
    aten.expand.default: _expand,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.reshape.default: _view,
}
