"""Turn the ops of a segment into an fx graph with named input and output tensors, and into code."""

import keyword
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen

from dlplacer.core.errors import InternalError
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.frontend.torch.tracing.kernels import kernel_for, laid_out
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.stateful_ops import Updater

_PLAIN = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_FROM_OUTSIDE = ("parameter", "buffer", "input", "tangent", "constant")

# A call through ``torch.ops`` boxes its arguments, and takes up to twice as long as through torch's own binding.
_BOUND = """
_log_softmax _log_softmax_backward_data _scaled_dot_product_flash_attention_for_cpu _softmax _softmax_backward_data
add.Tensor addmm bmm cat clone constant_pad_nd convolution div.Tensor embedding exp flip gather index_select log
masked_fill.Scalar maximum mean.dim minimum mm mul.Tensor native_layer_norm neg permute pow.Tensor_Scalar relu rsqrt
select.int sigmoid split_with_sizes sqrt squeeze.dim stack sub.Tensor sum.dim_IntList t tanh transpose.int unbind.int
unsafe_split.Tensor unsqueeze where.self
"""
_BOUND_IN_NN = "avg_pool2d gelu max_pool2d_with_indices silu"


def _bound(names: str, module: Any) -> dict[Any, Callable[..., Any]]:
    pairs = (name.partition(".")[::2] for name in names.split())
    return {
        getattr(getattr(torch.ops.aten, name), overload or "default"): getattr(module, name) for name, overload in pairs
    }


NATIVE: dict[Any, Callable[..., Any]] = {
    **_bound(_BOUND, torch),
    **_bound(_BOUND_IN_NN, torch._C._nn),
    **_bound("expand view", torch.Tensor),
}
"""Operator → torch's own binding of it, with the same arguments in the same order."""

LASTING = ("parameter", "buffer", "constant", "mutation")
"""Roles of ops that use a tensor from outside the step, the same tensor in every step."""


class BoxedCode(CodeGen):
    """Generates ``forward(self, boxed)``, which takes every argument out of the list ``boxed``.

    A caller keeps positional arguments alive until the function returns. An argument from a list lives until its last
    use, after which the generated code drops it.
    """

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:  # noqa: ARG002
        """The head of the function: one assignment for each placeholder."""
        names = [text.split(":")[0].split("=")[0].strip() for text in free_vars if text != "self"]
        lines = [f"def forward(self, boxed){maybe_return_annotation}:"]
        if names:
            lines += [f"    {', '.join(names)}, = boxed", "    boxed.clear()"]
        return "\n".join(lines)


def boxed_module(graph: fx.Graph, attributes: dict[str, Any]) -> fx.GraphModule:
    """The module of a graph, whose ``forward`` takes a list."""
    graph.set_codegen(BoxedCode())
    return fx.GraphModule(attributes, graph, "Segment")


@dataclass(frozen=True)
class SegmentGraph:
    """The code of a segment, and the names of its inputs and outputs in order.

    The graph's placeholders are, in order: in recorded runs, the function to call after an op; the values `read` from
    other segments; the tensors from outside the step, by ids of the ops `bound` to them. `lasting` are positions in
    ``(*read, *bound)`` of tensors that are the same in every step; `fresh` are the `outputs` that outlive the step.
    `op_of`: name of an fx node → op id. `attributes` are constants that have no literal.
    """

    device: RuntimeDevice
    graph: fx.Graph
    read: tuple[str, ...]
    bound: tuple[str, ...]
    lasting: frozenset[int]
    outputs: tuple[str, ...]
    fresh: frozenset[str]
    op_of: Mapping[str, str]
    attributes: dict[str, Any]


def segment_graph(
    executable: Executable,
    ops: Sequence[str],
    outputs: Sequence[str],
    device: RuntimeDevice,
    updater: Updater,
    lasting: Collection[str] = (),
    fresh: Collection[str] = (),
    recorded: bool = False,
) -> SegmentGraph:
    """The graph of consecutive ops of one device, with kernels for the device's type.

    `outputs` name the values needed after the segment; values in `fresh` are needed after the step too. `lasting` name
    values that are the same tensors in every step. A `recorded` graph has one more input: a function that it calls with
    the op's id after every op.
    """
    codes = [executable.codes[op] for op in ops]
    builder = _Builder(device.torch_device, updater)
    marker = builder.graph.placeholder("marker") if recorded else None
    read = tuple(dict.fromkeys(values_read(codes)))
    for name in read:
        builder.values[name] = builder.graph.placeholder(f"read_{len(builder.values)}")
    bound: dict[str, str] = {}
    for code in codes:
        # One input per tensor, under the id of the op that writes to the tensor, if any.
        if code.role == "mutation" or (code.role in _FROM_OUTSIDE and (code.name or code.op) not in bound):
            bound[code.name or code.op] = code.op
    for key in bound:
        builder.bound[key] = builder.graph.placeholder(f"bound_{len(builder.bound)}")
    for code in codes:
        builder.add(code)
        if marker is not None:
            builder.update()
            builder.call(_called, (marker, code.op), {})
    builder.update()
    builder.graph.output(tuple(builder.values[name] for name in outputs))
    lasts = [name in lasting for name in read] + [executable.codes[op].role in LASTING for op in bound.values()]
    return SegmentGraph(
        device,
        builder.graph,
        read,
        tuple(bound.values()),
        frozenset(position for position, is_lasting in enumerate(lasts) if is_lasting),
        tuple(outputs),
        frozenset(outputs).intersection(fresh),
        builder.op_of,
        builder.attributes,
    )


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
    updates: list[OpCode] = field(default_factory=list)

    def add(self, code: OpCode) -> None:
        """Append the calls of one op; updates are collected until other calls follow."""
        if code.role == "update":
            self.updates.append(code)
        if code.role in ("update", "gradient"):
            return
        self.update()
        self.op = code.op
        if code.role in _FROM_OUTSIDE:
            self.values[code.value] = self.bound[code.name or code.op]
        elif code.role == "mutation":
            self.call(torch.Tensor.copy_, (self.bound[code.name], self.values[code.reads[0]]), {})
        for instruction in code.instructions:
            self._instruction(instruction)

    def update(self) -> None:
        """Append one call for all collected updates."""
        if self.updates:
            self.op = self.updates[0].op
            weights, gradients = ([self.values[code.reads[at]] for code in self.updates] for at in (0, 1))
            names = [code.name for code in self.updates]
            self.call(_called, (self._constant(self.updater), names, weights, gradients), {})
            self.updates = []

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
            target = kernel_for(instruction.target, self.device.type)
            target = NATIVE.get(target, target)
            if not (isinstance(target, torch._ops.OpOverload) or getattr(target, "__name__", "").isidentifier()):
                # torch.fx writes a function by its name, which callable objects and lambdas lack.
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


def values_read(codes: Iterable[OpCode]) -> Iterator[str]:
    """Values that the ops read but do not make; ops of role ``gradient`` read none."""
    made: set[str] = set()
    for code in codes:
        read = [*code.reads[: {"mutation": 1, "update": 2}.get(code.role, 0)]]
        read += [name for call in code.instructions for name in _names((*call.args, *call.kwargs.values()))]
        yield from (name for name in read if name not in made and name not in code.results)
        made.update(code.results)


def _names(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Value):
            yield value.name
        elif isinstance(value, (list, tuple)):
            yield from _names(value)
