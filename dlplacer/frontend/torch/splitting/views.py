"""A view of a tensor in pieces: where it keeps the pieces apart, it is taken of each piece, at no cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a tensor, and the view that is taken of the whole.

    Attributes
    ----------
    read, made
        Shapes of the tensor and of the view.
    args
        Arguments of the call behind its first.
    dim, bounds
        The dimension along which the tensor is in pieces, and where this one begins and ends.
    """

    read: Sequence[int]
    made: Sequence[int]
    args: tuple[Any, ...]
    dim: int
    bounds: tuple[int, int]


Rule = Callable[[_Piece], PieceView | None]


def view_of_piece(node: fx.Node, dim: int, piece: tuple[int, int]) -> PieceView | None:
    """The view of one piece of the tensor that a view op reads; None if it mixes pieces."""
    rule = _RULES.get(node.target)
    if rule is None or node.kwargs:
        return None
    source, made = node.args[0], node.meta["val"]
    assert isinstance(source, fx.Node)
    first = made[0] if isinstance(made, (tuple, list)) else made
    return rule(_Piece(source.meta["val"].shape, first.shape, node.args[1:], dim, piece))


def _same(piece: _Piece) -> PieceView:
    return PieceView(piece.dim, piece.bounds, piece.args)


def _transpose(piece: _Piece) -> PieceView:
    first, second = (
        (piece.args[0] % len(piece.read), piece.args[1] % len(piece.read)) if piece.args else (0, len(piece.read) - 1)
    )
    return PieceView({first: second, second: first}.get(piece.dim, piece.dim), piece.bounds, piece.args)


def _permute(piece: _Piece) -> PieceView:
    order = [entry % len(piece.read) for entry in piece.args[0]]
    return PieceView(order.index(piece.dim), piece.bounds, piece.args)


def _unsqueeze(piece: _Piece) -> PieceView:
    return PieceView(piece.dim + (piece.args[0] % len(piece.made) <= piece.dim), piece.bounds, piece.args)


def _squeeze(piece: _Piece) -> PieceView | None:
    listed = piece.args[0] if isinstance(piece.args[0], (list, tuple)) else [piece.args[0]]
    gone = {entry % len(piece.read) for entry in listed if piece.read[entry % len(piece.read)] == 1}
    if any(entry % len(piece.read) == piece.dim for entry in listed):
        return None
    return PieceView(piece.dim - sum(entry < piece.dim for entry in gone), piece.bounds, piece.args)


def _taken(piece: _Piece, place: int = 0, drops: bool = False) -> PieceView | None:
    """Parts of the tensor along another dimension, which argument `place` names and the view may drop."""
    along = piece.args[place] % len(piece.read) if len(piece.args) > place else 0
    if along == piece.dim:
        return None
    return PieceView(piece.dim - (drops and along < piece.dim), piece.bounds, piece.args)


def _expand(piece: _Piece) -> PieceView | None:
    place = piece.dim + len(piece.made) - len(piece.read)
    if piece.read[piece.dim] != piece.made[place]:
        return None
    return PieceView(
        place, piece.bounds, (_with(piece.made, place, piece.bounds[1] - piece.bounds[0]), *piece.args[1:])
    )


def _view(piece: _Piece) -> PieceView | None:
    """The piece stays one piece if the dimensions before it hold as many elements, and its ends fall on whole rows."""
    if 0 in piece.made:
        return None
    before, inner = math.prod(piece.read[: piece.dim]), math.prod(piece.read[piece.dim + 1 :])
    for place in range(len(piece.made)):
        if math.prod(piece.made[:place]) == before and piece.made[place] > 1:
            row = math.prod(piece.made[place + 1 :])
            if any(end * inner % row for end in piece.bounds):
                return None
            begin, end = (end * inner // row for end in piece.bounds)
            return PieceView(place, (begin, end), (_with(piece.made, place, end - begin),))
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
    aten.select.int: partial(_taken, drops=True),
    aten.slice.Tensor: _taken,
    aten.split.Tensor: partial(_taken, place=1),
    aten.split_with_sizes.default: partial(_taken, place=1),
    aten.unbind.int: partial(_taken, drops=True),
    aten.expand.default: _expand,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.reshape.default: _view,
}
