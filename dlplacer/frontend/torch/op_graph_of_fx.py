"""The traced ATen graph → ops, edges and the code that runs them."""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.core.op import Edge, Op
from dlplacer.frontend.torch import nodes
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.frontend.torch.job import Optimizer
from dlplacer.frontend.torch.nodes import bytes_of, flops_of, tensor_bytes
from dlplacer.frontend.torch.refusals import require_fixed_shapes
from dlplacer.frontend.torch.splitting import ORIGIN
from dlplacer.frontend.torch.tracing import joint
from dlplacer.frontend.torch.tracing.joint import Slot, Traced

_SUFFIX = {"gradient": ".grad", "mutation": ".new"}


@dataclass
class _Builder:
    """Collects ops in trace order; `home`: value → the op and output that it comes from."""

    ops: dict[str, Op] = field(default_factory=dict)
    codes: dict[str, OpCode] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    home: dict[str, tuple[str, int]] = field(default_factory=dict)

    def bring_in(self, node: fx.Node, wanted: str, role: str, value: Any, *, name: str = "", **code: Any) -> None:
        """Add a zero-time op for a tensor from outside; parameters and buffers count as weights, others as outputs."""
        op_id, weighs = self._free_id(wanted), role in ("parameter", "buffer")
        phase, module = "backward" if role == "tangent" else "forward", name.rpartition(".")[0] or None
        size: dict[str, Any] = {"weight_bytes" if weighs else "output_bytes": tensor_bytes(value)}
        specs = nodes.output_specs(value)
        op = Op(op_id, role, 0.0, outputs=specs, phase=phase, module=module, colocate=name or None, **size)
        self._add(op, OpCode(op_id, role, value=node.name, name=name, **code))
        self.home[node.name] = op_id, 0

    def fold(self, node: fx.Node) -> None:
        """Attach tuple unpacking or a view to the op whose result it reads."""
        if not node.all_input_nodes:
            # For example the conjugate of a Python number.
            value = node.target(*map(torch.as_tensor, node.args)).resolve_conj()  # type: ignore[operator]
            self.bring_in(node, node.name, "constant", value, constant=value)
            return
        source = node.args[0] if isinstance(node.args[0], fx.Node) else next(iter(node.all_input_nodes))
        op_id, output = self.home[source.name]
        # Unpacking a split or unbind selects a view of the same output of the op, not another output.
        if node.target is operator.getitem and not nodes.is_view(source):
            output = nodes.picked_output(node)
        self.home[node.name] = op_id, output
        code = self.codes[op_id]
        self.codes[op_id] = replace(code, instructions=(*code.instructions, _instruction(node)))

    def add_call(self, node: fx.Node) -> None:
        specs = nodes.output_specs(node.meta["val"])
        op_id = self._free_id(node.name)
        reads = self._read(op_id, node.all_input_nodes)
        call = _instruction(node)
        self._add(
            Op(
                op_id,
                nodes.kind_of(node),
                flops=flops_of(node),
                bytes_accessed=bytes_of(node),
                dtype=next(spec.dtype for spec in specs if spec.dtype != "none"),
                outputs=specs,
                phase=self._phase(node),
                module=joint.module_path(node),
                origin=(node.meta[ORIGIN],) if ORIGIN in node.meta else (),
                attrs={
                    "target": str(node.target),
                    "args": nodes.written(call.args),
                    "kwargs": nodes.written(dict(call.kwargs)),
                },
            ),
            OpCode(op_id, "call", reads, instructions=(call,), random=nodes.is_random(node)),
        )
        self.home[node.name] = op_id, 0

    def add_sink(self, node: fx.Node, slot: Slot) -> None:
        """Add the sink of a gradient or new buffer value, on the device of its parameter or buffer."""
        op_id = self._free_id(slot.name + _SUFFIX[slot.role])
        reads = self._read(op_id, [node])
        phase = "backward" if slot.role == "gradient" else self._phase(node)
        module = slot.name.rpartition(".")[0] or None
        op = Op(op_id, slot.role, 0.0, phase=phase, module=module, colocate=slot.name)
        self._add(op, OpCode(op_id, slot.role, reads, name=slot.name))
        if slot.role == "gradient" and node.meta["val"].is_sparse:
            raise CaptureError(f"the gradient of {slot.name!r} is sparse, which no plan can place; use sparse=False")

    def _read(self, op_id: str, read: Sequence[fx.Node]) -> tuple[str, ...]:
        for node in read:
            source, output = self.home[node.name]
            self.edges.append(Edge(source, op_id, tensor_bytes(node.meta["val"]), output, node.name))
        return tuple(node.name for node in read)

    def _phase(self, node: fx.Node) -> str:
        """A node's phase; torch does not tag the backward of a custom autograd.Function, so the inputs decide."""
        reads_backward = any(self.ops[self.home[read.name][0]].phase == "backward" for read in node.all_input_nodes)
        return "backward" if joint.is_backward(node) or reads_backward else "forward"

    def _add(self, op: Op, code: OpCode) -> None:
        self.ops[op.id], self.codes[op.id] = op, code

    def _free_id(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.ops:
            name, count = f"{wanted}#{count + 1}", count + 1
        return name


def build(
    traced: Traced, input_names: Sequence[str], tied: Mapping[str, str], trains: bool
) -> tuple[list[Op], list[Edge], Executable]:
    """The ops and edges of a traced graph, and its executable.

    `input_names`: a readable name for each flat input; `tied`: name of a parameter or buffer → the first of its names.
    """
    require_fixed_shapes(traced.module.graph)
    builder = _Builder()
    brought = _brought_in(traced, tied)
    for node in traced.module.graph.nodes:
        if node.op == "placeholder" and node in brought:
            slot = traced.inputs[node.name]
            wanted = slot.name or (input_names[slot.position] if slot.role == "input" else "tangent")
            builder.bring_in(node, wanted, slot.role, node.meta["val"], name=slot.name, position=slot.position)
        elif node.op == "get_attr":
            constant = operator.attrgetter(str(node.target))(traced.module)
            if isinstance(constant, fx.GraphModule):
                raise CaptureError(
                    f"the model uses a higher-order op (sub-graph {node.target!r}); replace ops such as torch.cond by "
                    "torch.where, or move that part out of the module"
                )
            builder.bring_in(node, node.name, "constant", constant, constant=constant)
        elif node.op == "call_function" and not nodes.is_check(node):
            (builder.fold if nodes.is_folded(node) else builder.add_call)(node)
    for node, slot in traced.outputs:
        if slot.role in _SUFFIX:
            builder.add_sink(node, slot)
    # Order-only edges come last: they must not count as reads, or they would keep dead inputs.
    edges = [*builder.edges, *write_after_read(builder.codes, builder.edges)]
    ordered = sorted(((slot.position, node.name) for node, slot in traced.outputs if slot.role == "output"))
    used = {edge.source for edge in builder.edges} | {code.op for code in builder.codes.values() if code.reads}
    used |= {builder.home[name][0] for _, name in ordered}
    kept = [op for op in builder.ops.values() if op.id in used or op.kind in ("parameter", "buffer", "input")]
    kept = list(_with_output_bytes(kept, builder))
    values = {node.name: node.meta.get("val") for node in traced.module.graph.nodes}
    dense = {name: each for name, each in values.items() if torch.is_tensor(each) and each.layout is torch.strided}
    layouts = {name: (tuple(value.shape), value.stride(), value.dtype) for name, value in dense.items()}
    codes, returned = {op.id: builder.codes[op.id] for op in kept}, tuple(name for _, name in ordered)
    executable = Executable(codes, returned, traced.output_spec, trains, traced.constants, layouts)
    return kept, edges, executable


def write_after_read(codes: Mapping[str, OpCode], edges: Sequence[Edge]) -> Iterator[Edge]:
    """Zero-byte edges from the readers of a parameter or buffer to the update or mutation that overwrites it.

    Data dependences do not imply this order: an update reads the weight and gradient, but no results of the weight's
    other readers. Readers that feed the writing op directly need no further edge.
    """
    readers: dict[str, list[str]] = {}
    sources: dict[str, set[str]] = {}
    for edge in edges:
        readers.setdefault(edge.source, []).append(edge.target)
        sources.setdefault(edge.target, set()).add(edge.source)
    written = {code.name: code.op for code in codes.values() if code.role in ("parameter", "buffer")}
    for code in codes.values():
        if code.role in ("mutation", "update"):
            for reader in dict.fromkeys(readers.get(written[code.name], ())):
                if reader != code.op and reader not in sources[code.op]:
                    yield Edge(reader, code.op, 0)


def _brought_in(traced: Traced, tied: Mapping[str, str]) -> set[fx.Node]:
    """The placeholders of tensors, which become ops; of a tied tensor, those that are read, or the first if none is."""
    brought: set[fx.Node] = set()
    unread: dict[str, fx.Node] = {}
    read: set[str] = set()
    for node in traced.module.graph.find_nodes(op="placeholder"):
        slot = traced.inputs[node.name]
        first = tied.get(slot.name, slot.name)
        if not isinstance(node.meta.get("val"), torch.Tensor):
            if node.users:
                raise CaptureError(f"input {node.name!r} is a number that the step reads; give a tensor of shape []")
        elif node.users or slot.role not in ("parameter", "buffer"):
            brought.add(node)
            read.add(first)
        else:
            unread.setdefault(first, node)
    return brought.union(node for first, node in unread.items() if first not in read)


def _with_output_bytes(ops: Sequence[Op], builder: _Builder) -> Iterator[Op]:
    """The ops with output bytes charged to their producers; a gradient is charged to its parameter instead."""
    gradients = [code for code in builder.codes.values() if code.role == "gradient"]
    named, made = {code.name for code in gradients}, {builder.home[code.reads[0]] for code in gradients}
    for op in ops:
        if builder.codes[op.id].role == "call":
            sizes = (spec.bytes for index, spec in enumerate(op.outputs) if (op.id, index) not in made)
            yield replace(op, output_bytes=sum(sizes))
        else:
            has_gradient = op.kind == "parameter" and builder.codes[op.id].name in named
            yield replace(op, gradient_bytes=op.weight_bytes) if has_gradient else op


def _instruction(node: fx.Node) -> Instruction:
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda read: Value(read.name))  # type: ignore[arg-type, return-value]
    assert callable(node.target)
    return Instruction(node.name, node.target, args, kwargs, nodes.strides_to_keep(node))


def add_updates(
    ops: list[Op], edges: list[Edge], executable: Executable, optimizer: Optimizer
) -> tuple[list[Op], list[Edge], Executable]:
    """Append an op ``<parameter>.update`` for every parameter with a gradient.

    The op reads weight and gradient, and runs on the parameter's device, because it is in the parameter's
    colocation group. Its state occupies memory during the whole step.
    """
    codes: dict[str, OpCode] = dict(executable.codes)
    parameters = {code.name: code for code in codes.values() if code.role == "parameter"}
    by_id: Mapping[str, Op] = {op.id: op for op in ops}
    edges = list(edges)
    updates = []
    for code in executable.of_role("gradient"):
        parameter = parameters[code.name]
        weight = by_id[parameter.op]
        size = weight.weight_bytes
        update = Op(
            f"{code.name}.update",
            f"update.{optimizer.kind}",
            # Weight decay and step take two operations per element, each state tensor about four. Traffic: the weight
            # and gradient are read, the weight is written, and each state is read and written.
            flops=(2 + 4 * optimizer.states) * math.prod(weight.outputs[0].shape),
            bytes_accessed=(3 + 2 * optimizer.states) * size,
            dtype=weight.outputs[0].dtype,
            state_bytes=optimizer.states * size,
            phase="optimizer",
            module=weight.module,
            colocate=weight.colocate,
        )
        source = next(edge for edge in edges if edge.target == code.op)
        edges.append(Edge(parameter.op, update.id, size, 0, parameter.value))
        edges.append(replace(source, target=update.id))
        codes[update.id] = OpCode(update.id, "update", (parameter.value, code.reads[0]), name=code.name)
        updates.append(update)
    edges += write_after_read({name: code for name, code in codes.items() if code.role != "mutation"}, edges)
    return [*ops, *updates], edges, replace(executable, codes=codes)
