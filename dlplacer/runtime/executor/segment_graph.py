"""The ops of a segment → an fx graph whose inputs and outputs are tensors by name."""

import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import InternalError
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.frontend.torch.tracing.kernels import kernel_for, laid_out
from dlplacer.runtime.executor.native_kernels import native
from dlplacer.runtime.executor.optimizer_update import Updater

_PLAIN = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_FROM_OUTSIDE = ("parameter", "buffer", "input", "tangent", "constant")

LASTING = ("parameter", "buffer", "constant", "mutation")
"""Roles that touch a tensor from outside which is the same one in every step."""


@dataclass(frozen=True)
class SegmentGraph:
    """The code of a segment, and the names of its inputs and outputs in order.

    Attributes
    ----------
    graph
        Its placeholders are the marker of recorded runs, if it has one, then `read`, then `bound`.
    read
        Values of the device that the ops read and do not make.
    bound
        Op ids whose tensors come from outside the step; of these `lasting` are the same in every step, and the segment
        writes to `written`.
    outputs
        Values that outlive the segment.
    op_of
        Name of an fx node → op id.
    attributes
        Constants that the graph refers to by name, as they have no literal.
    """

    graph: fx.Graph
    read: tuple[str, ...]
    bound: tuple[str, ...]
    lasting: frozenset[str]
    written: frozenset[str]
    outputs: tuple[str, ...]
    op_of: Mapping[str, str]
    attributes: dict[str, Any]


def segment_graph(
    executable: Executable,
    ops: Sequence[str],
    outputs: Sequence[str],
    device: torch.device,
    updater: Updater,
    recorded: bool = False,
) -> SegmentGraph:
    """The graph of consecutive ops of one device.

    Parameters
    ----------
    outputs
        Names of values that the ops make and that are needed afterwards.
    device
        Where the ops run: it decides on kernels, and takes the place of devices among their arguments.
    recorded
        Whether the graph takes one input more, which it calls with the op's id behind every op.
    """
    codes = [executable.codes[op] for op in ops]
    builder = _Builder(device, updater)
    marker = builder.graph.placeholder("marker") if recorded else None
    read = tuple(dict.fromkeys(_read_from_before(codes)))
    for name in read:
        builder.values[name] = builder.graph.placeholder(f"read_{len(builder.values)}")
    bound: dict[str, str] = {}
    for code in codes:
        # One input for each tensor, by the op that writes to it if there is one.
        if code.role == "mutation" or (code.role in _FROM_OUTSIDE and (code.name or code.op) not in bound):
            bound[code.name or code.op] = code.op
    for key in bound:
        builder.bound[key] = builder.graph.placeholder(f"bound_{len(builder.bound)}")
    for code in codes:
        builder.add(code)
        if marker is not None:
            builder.call(_mark, (marker, code.op), {})
    builder.graph.output(tuple(builder.values[name] for name in outputs))
    roles = {op: executable.codes[op].role for op in bound.values()}
    return SegmentGraph(
        builder.graph,
        read,
        tuple(roles),
        frozenset(op for op, role in roles.items() if role in LASTING),
        frozenset(op for op, role in roles.items() if role == "mutation"),
        tuple(outputs),
        builder.op_of,
        builder.attributes,
    )


def _mark(marker: Callable[[str], None], op: str) -> None:
    marker(op)


@dataclass
class _Builder:
    device: torch.device
    updater: Updater
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[str, fx.Node] = field(default_factory=dict)
    bound: dict[str, fx.Node] = field(default_factory=dict)
    op_of: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    op: str = ""

    def add(self, code: OpCode) -> None:
        """Append the calls of one op."""
        self.op = code.op
        if code.role in _FROM_OUTSIDE:
            self.values[code.value] = self.bound[code.name or code.op]
        elif code.role == "mutation":
            self.call(torch.Tensor.copy_, (self.bound[code.name], self.values[code.reads[0]]), {})
        elif code.role == "update":
            weight, gradient = (self.values[name] for name in code.reads[:2])
            self.call(_update, (self._constant(self.updater), code.name, weight, gradient), {})
        for instruction in code.instructions:
            self._instruction(instruction)

    def call(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """Append a call that belongs to the current op."""
        node = self.graph.call_function(target, args, kwargs)
        self.op_of[node.name] = self.op
        return node

    def _instruction(self, instruction: Instruction) -> None:
        args = tuple(self._argument(value) for value in instruction.args)
        if instruction.target is getitem:
            made = self.call(getitem, args, {})
        else:
            kwargs = {name: self._argument(value) for name, value in instruction.kwargs.items()}
            odd = [name for name in kwargs if not name.isidentifier() or keyword.iskeyword(name)]
            if odd:
                raise InternalError(f"op {self.op!r} passes an argument named {odd[0]!r}, which is no Python name")
            target = native(kernel_for(instruction.target, self.device.type))
            if not (isinstance(target, torch._ops.OpOverload) or getattr(target, "__name__", "").isidentifier()):
                # torch.fx writes functions by their names, which callable objects and lambdas lack.
                target, args = _called, (self._constant(target), *args)
            made = self.call(target, args, kwargs)
        if instruction.strides is not None:
            made = self.call(laid_out, (made, instruction.strides), {})
        self.values[instruction.result] = made

    def _argument(self, value: object) -> Any:
        if isinstance(value, Value):
            return self.values[value.name]
        if isinstance(value, torch.device):
            return self.device
        if isinstance(value, (list, tuple)):
            return [self._argument(entry) for entry in value]
        return value if isinstance(value, _PLAIN) else self._constant(value)

    def _constant(self, value: object) -> fx.Node:
        name = next((name for name, known in self.attributes.items() if known is value), None)
        if name is None:
            name = f"constant_{len(self.attributes)}"
            self.attributes[name] = value
        return self.graph.get_attr(name)


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _update(updater: Updater, name: str, weight: torch.Tensor, gradient: torch.Tensor) -> None:
    updater(name, weight, gradient)


def _read_from_before(codes: Iterable[OpCode]) -> Iterator[str]:
    """Values that the ops read and none of them makes."""
    made: set[str] = set()
    for code in codes:
        for name in values_read(code):
            if name not in made:
                yield name
        made.update(code.results)


def values_read(code: OpCode) -> Iterator[str]:
    """Values that an op reads to compute; the end of a gradient only says where it is."""
    if code.role in ("mutation", "update"):
        yield from code.reads[: 1 if code.role == "mutation" else 2]
    made: set[str] = {code.value}
    for instruction in code.instructions:
        for name in _names(instruction.args):
            if name not in made:
                yield name
        for name in _names(instruction.kwargs.values()):
            if name not in made:
                yield name
        made.add(instruction.result)


def _names(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Value):
            yield value.name
        elif isinstance(value, (list, tuple)):
            yield from _names(value)
