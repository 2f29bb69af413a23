"""Which outputs of a group's members are outputs of the group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import TensorSpec


@dataclass(frozen=True)
class Outputs:
    """The outputs of a group.

    Attributes
    ----------
    index
        (Member, its output) → output of the group, for all that is read outside and all that nothing reads.
    specs
        By output of the group; empty if a member does not give its own.
    """

    index: Mapping[tuple[str, int], int]
    specs: tuple[TensorSpec, ...]


def joined_outputs(graph: OpGraph, members: Sequence[str]) -> Outputs:
    """The outputs of a group: what is read outside, and what nothing reads, which is what the step returns."""
    inside = set(members)
    index: dict[tuple[str, int], int] = {}
    for member in members:
        edges = graph.edges_from[member]
        leaving = sorted({edge.output for edge in edges if edge.target not in inside})
        unread = range(len(graph.op(member).outputs)) if not edges else ()
        for output in dict.fromkeys((*leaving, *unread)):
            index[member, output] = len(index)
    specs = []
    for member, output in index:
        own = graph.op(member).outputs
        if output >= len(own):
            return Outputs(index, ())
        specs.append(own[output])
    return Outputs(index, tuple(specs))
