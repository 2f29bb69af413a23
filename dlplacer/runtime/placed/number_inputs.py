"""Python numbers among the inputs: two captures that differ in them alone become one, which takes any number."""

import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.symbolic_numbers import only_flow_into_ops

Leaves = Sequence[Any]
"""Flat inputs of a step."""


class _OtherCodeError(Exception):
    """Two captures differ in more than the numbers."""


@dataclass(frozen=True)
class NumberTemplate:
    """What fits a step with any numbers at some positions of its inputs.

    Attributes
    ----------
    fixed
        Position → number, for those that the step was captured with.
    """

    free: frozenset[int]
    fixed: Mapping[int, Hashable]

    def fits(self, leaves: Leaves) -> bool:
        """Whether the fixed numbers are the same."""
        return self.fixed == {
            position: bits for position, bits in _numbers(leaves).items() if position not in self.free
        }


def template_of(leaves: Leaves, captured: Captured) -> NumberTemplate:
    """The template for the inputs that a step was captured with."""
    free = frozenset(captured.executable.numbers.values())
    return NumberTemplate(free, {at: bits for at, bits in _numbers(leaves).items() if at not in free})


def number_bits(value: Any) -> Hashable:
    """A number by its type and bits: NaN is not equal to itself, 0.0 is equal to -0.0, and 1 to 1.0 and to True."""
    return type(value).__name__, struct.pack("d", value) if isinstance(value, float) else value


def is_number(value: Any) -> bool:
    """Whether a value may be another number in the next step; a truth value is none."""
    return type(value) in (int, float)


def generalized(job: Job, captured: Captured, leaves: Leaves, earlier: Captured, before: Leaves) -> Captured | None:
    """The captured step with its numbers as inputs; None where more than ops depends on them.

    Parameters
    ----------
    job
        With the numbers that `captured` was captured with.
    earlier, before
        A capture with other numbers, and its inputs.
    """
    mine, theirs = _numbers(leaves), _numbers(before)
    differing = [position for position in mine if mine[position] != theirs.get(position)]
    # Equal ones could not be told apart in the code.
    if not differing or len({mine[at] for at in differing}) < len(differing):
        return None
    if _structure(captured.graph) != _structure(earlier.graph) or not only_flow_into_ops(job, differing):
        return None
    names = {f"inputs[{position}]": position for position in differing}
    pairs = {name: (leaves[position], before[position]) for name, position in names.items()}
    try:
        return Captured(captured.graph, _merged(captured.executable, earlier.executable, names, pairs))
    except _OtherCodeError:
        return None


_Pairs = Mapping[str, tuple[Any, Any]]


def _merged(one: Executable, other: Executable, names: Mapping[str, int], pairs: _Pairs) -> Executable:
    if (list(one.codes), one.outputs, dict(one.constants)) != (list(other.codes), other.outputs, dict(other.constants)):
        raise _OtherCodeError
    codes = {op: _merged_code(code, other.codes[op], pairs) for op, code in one.codes.items()}
    return replace(one, codes=codes, numbers=dict(names))


def _merged_code(one: OpCode, other: OpCode, pairs: _Pairs) -> OpCode:
    plain = [replace(code, instructions=(), constant=None) for code in (one, other)]
    if plain[0] != plain[1] or one.constant is not other.constant or len(one.instructions) != len(other.instructions):
        raise _OtherCodeError
    both = zip(one.instructions, other.instructions, strict=True)
    return replace(one, instructions=tuple(_merged_call(mine, theirs, pairs) for mine, theirs in both))


def _merged_call(one: Instruction, other: Instruction, pairs: _Pairs) -> Instruction:
    if (one.result, one.target) != (other.result, other.target):
        raise _OtherCodeError
    args, kwargs = _merged_value(one.args, other.args, pairs), _merged_value(one.kwargs, other.kwargs, pairs)
    return replace(one, args=tuple(args), kwargs=kwargs)


def _merged_value(one: Any, other: Any, pairs: _Pairs) -> Any:
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return {key: _merged_value(value, other[key], pairs) for key, value in one.items()}
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return type(one)(_merged_value(mine, theirs, pairs) for mine, theirs in zip(one, other, strict=True))
    if is_number(one) and is_number(other):
        if number_bits(one) == number_bits(other):
            return one
        for name, (mine, theirs) in pairs.items():
            if (number_bits(one), number_bits(other)) == (number_bits(mine), number_bits(theirs)):
                return Value(name)
        raise _OtherCodeError
    if type(one) is not type(other) or one != other:
        raise _OtherCodeError
    return one


def _numbers(leaves: Leaves) -> dict[int, Hashable]:
    return {position: number_bits(leaf) for position, leaf in enumerate(leaves) if is_number(leaf)}


def _structure(graph: OpGraph) -> tuple[Any, ...]:
    """The graph without the arguments of its ops."""
    return tuple(replace(op, attrs={}) for op in graph.ops), graph.edges
