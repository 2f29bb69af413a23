"""Cuts of an op: the slices that a part reads, and the way to join the parts' results."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import fx

SUM = -1
"""In place of a dimension: the whole is the sum of the parts."""

Amend = Callable[[list[Any], int, int], None]
"""Changes a part's arguments, in place, where they name sizes: (arguments, size of the part, size of the whole)."""


@dataclass(frozen=True)
class Pattern:
    """One way to cut an op along an axis.

    Attributes
    ----------
    inputs
        Index of a tensor argument, or of a list of tensors → the dimension along which a part reads a slice of it. An
        argument that is not named is read whole by every part.
    outputs
        For each output, the dimension along which the parts' results lie side by side, `SUM`, or None where there is
        no tensor or an empty one.
    amend
        For arguments that name sizes.
    named
        As `inputs`, for keyword arguments.
    """

    inputs: Mapping[int, int]
    outputs: tuple[int | None, ...]
    amend: Amend | None = None
    named: Mapping[str, int] = field(default_factory=dict)

    def extent(self, node: fx.Node) -> int:
        """Size of the dimension that is cut."""
        index, dim = next(iter(self.inputs.items()))
        argument = node.args[index]
        first = argument[0] if isinstance(argument, (list, tuple)) else argument
        assert isinstance(first, fx.Node)
        return int(first.meta["val"].shape[dim])


Patterns = Iterator[tuple[str, Pattern]]
"""Name of an axis and how the op is cut along it, for each axis."""


def bounds(extent: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Begin and end of each part of a dimension; the first parts are longer by one where it does not divide evenly."""
    size, longer = divmod(extent, parts)
    begins = [number * size + min(number, longer) for number in range(parts + 1)]
    return tuple(pairwise(begins))


def value(argument: Any) -> Any:
    """The stand-in of an argument: a tensor for a node, else the argument itself."""
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def is_tensor(argument: Any) -> bool:
    """True if an argument is a node that gives one tensor."""
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), torch.Tensor)


def argument(node: fx.Node, name: str) -> Any:
    """An argument of an ATen call by its name in the schema: as given, or its default."""
    schema = node.target._schema  # type: ignore[union-attr]
    for index, declared in enumerate(schema.arguments):
        if declared.name == name:
            return node.args[index] if index < len(node.args) else node.kwargs.get(name, declared.default_value)
    raise KeyError(name)


def axis_name(dim: int) -> str:
    """Dimension 0 is the batch, 1 the channel."""
    return ("batch", "channel")[dim] if dim < 2 else f"dim{dim}"
