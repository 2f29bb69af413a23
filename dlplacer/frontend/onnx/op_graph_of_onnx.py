"""An ONNX model as a dataflow graph: inputs, weights and nodes, with their arithmetic and memory traffic."""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import onnx
from onnx import NodeProto, numpy_helper

from dlplacer.core.errors import FileFormatError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.files.structure_hash import structure_sha256
from dlplacer.frontend.onnx.onnx_values import MICROSOFT, OnnxFile, Values, data_inputs, reads, specs_of, values_of

_ENDLESS = 2**31
"""Exporters of ``while`` give the greatest number there is as the most rounds of a loop."""
_VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
_READ_IN_PART = frozenset(("Gather", "GatherElements", "GatherND", "Slice"))
"""Ops that read of their first input no more than what they return: an embedding, the rows of its tokens."""
_OF_SHAPES = frozenset(("Shape", "Size"))
_ONNX = ("", "ai.onnx")
"""The domain of the ops that are counted: one of the same name in another domain may be anything."""

Specs = Sequence[TensorSpec | None]


@dataclass(frozen=True, slots=True)
class NodeWork:
    """Arithmetic and memory traffic of a node, and the bytes of the tensors that only its bodies hold."""

    flops: float = 0.0
    bytes: int = 0
    held_bytes: int = 0


@dataclass(frozen=True)
class WorkCounter:
    """Counts the work of the nodes of a model after shape inference.

    Of the branches of an If the most work of any counts. A loop runs as often as what it stacks is long, else as often
    as it may, if that is a constant of the file; else it counts once, as nothing tells.
    """

    model: Any

    def work_of(self, node: Any, specs: Mapping[str, TensorSpec]) -> NodeWork:
        """The work of a node of the model or of one of its subgraphs; `specs` are of the values that it can see."""
        inputs = [specs.get(name) if name else None for name in node.input]
        outputs = [specs.get(name) if name else None for name in node.output]
        own_bytes = bytes_of(node, inputs, outputs)
        if is_standard(node) and node.op_type == "If":
            branches = [self.work_of_body(entry.g, specs) for entry in node.attribute if entry.HasField("g")]
            inner = NodeWork(
                max(branch.flops for branch in branches),
                max(branch.bytes for branch in branches),
                sum(branch.held_bytes for branch in branches),
            )
        elif is_standard(node) and node.op_type in ("Loop", "Scan"):
            rounds = self._rounds_of_scan(node, inputs) if node.op_type == "Scan" else self._rounds(node, outputs)
            once = self.work_of_body(attribute(node, "body", None), specs)
            inner = NodeWork(once.flops * rounds, once.bytes * rounds, once.held_bytes)
        else:
            return NodeWork(flops_of(node, inputs, outputs), own_bytes)
        return NodeWork(inner.flops, max(own_bytes, inner.bytes), inner.held_bytes)

    def work_of_body(self, body: Any, around: Mapping[str, TensorSpec]) -> NodeWork:
        """The work of one run of a graph that sees the values around it."""
        specs = ChainMap(specs_of(body), dict(around))
        works = [self.work_of(node, specs) for node in body.node if node.op_type != "Constant"]
        constants = [name for node in body.node if node.op_type == "Constant" for name in node.output]
        constants += [tensor.name for tensor in body.initializer]
        held = sum(specs[name].bytes for name in constants if name in specs and name not in around)
        return NodeWork(
            sum(work.flops for work in works),
            sum(work.bytes for work in works),
            held + sum(work.held_bytes for work in works),
        )

    def _rounds(self, loop: Any, outputs: Specs) -> int:
        # Inputs are how often at most, whether at all, and the carried values, which are outputs before the stacked.
        stacked = [spec.shape[0] for spec in outputs[max(0, len(loop.input) - 2) :] if spec is not None and spec.shape]
        if stacked:
            return stacked[0]
        most = self._numbers.get(loop.input[0], _ENDLESS) if loop.input else _ENDLESS
        return most if 0 <= most < _ENDLESS else 1

    def _rounds_of_scan(self, scan: Any, inputs: Specs) -> int:
        count = attribute(scan, "num_scan_inputs", 0)
        first = inputs[len(inputs) - count] if 0 < count <= len(inputs) else None
        if first is None or not first.shape:
            return 1
        # Before opset 9 the body runs for every sample of a batch, whose axis comes first.
        if next((entry.version for entry in self.model.opset_import if entry.domain in _ONNX), 9) < 9:
            return prod(first.shape[:2])
        axis = next(iter(attribute(scan, "scan_input_axes", [])), 0)
        return first.shape[axis] if -len(first.shape) <= axis < len(first.shape) else 1

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return dict(_numbers(self.model.graph))


def _numbers(graph: Any) -> Iterator[tuple[str, int]]:
    """Whole numbers that a graph and its subgraphs hold, by name."""
    held: list[tuple[str, Any]] = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant" and is_standard(node):
            held += [(name, attribute(node, "value", None)) for name in node.output]
        for entry in node.attribute:
            for inner in (entry.g, *entry.graphs):
                yield from _numbers(inner)
    for name, tensor in held:
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        if tensor.data_type == onnx.TensorProto.INT64 and prod(tensor.dims) == 1:
            yield name, int(numpy_helper.to_array(tensor).reshape(()))


def is_standard(node: NodeProto) -> bool:
    """True if a node is of ONNX's own domain."""
    return node.domain in _ONNX


def is_view(node: NodeProto) -> bool:
    """True if an op moves no bytes in inference."""
    return node.op_type in _VIEWS and is_standard(node)


def flops_of(node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    """FLOPs of convolutions, matrix products and recurrences, two per multiply-add; 0 for nodes that only move bytes.

    `inputs` and `outputs` are in the node's order, None for an optional one that is left out.
    """
    table = _FLOPS if is_standard(node) else _CONTRIB_FLOPS if node.domain == MICROSOFT else {}
    count = table.get(node.op_type)
    return 0.0 if count is None else float(count(node, inputs, outputs))


def bytes_of(node: NodeProto, inputs: Specs, outputs: Specs) -> int:
    """Bytes read and written, each tensor once; of a tensor that is read in part, that part."""
    if is_view(node):
        return 0
    standard = is_standard(node)
    written = sum(spec.bytes for spec in outputs if spec is not None)
    if standard and node.op_type in _OF_SHAPES:
        return written
    sizes = {name: spec.bytes for name, spec in zip(node.input, inputs, strict=True) if spec is not None}
    if standard and node.op_type in _READ_IN_PART and node.input and node.input[0] in sizes:
        sizes[node.input[0]] = min(sizes[node.input[0]], written)
    return written + sum(sizes.values())


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """The value of an attribute of a node, or the default."""
    found = (onnx.helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name)
    return next(found, default)


def _convolution(node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    """2 × outputs (of a transposed one, inputs) × (channels of a group × kernel): the latter make up the weight."""
    weight, positions = inputs[1], inputs[0] if node.op_type == "ConvTranspose" else outputs[0]
    return 2.0 * _size(positions) * prod(weight.shape[1:]) if weight is not None else 0.0


def _product(node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    left = inputs[0]
    # The shape of a constant may be unknown, where it was made by an op whose output's size depends on the data.
    if left is None or not left.shape:
        return 0.0
    turned = attribute(node, "transA", 0) and len(left.shape) > 1
    return 2.0 * _size(outputs[0]) * left.shape[-2 if turned else -1]


def _einsum(node: NodeProto, inputs: Specs, _outputs: Specs) -> float:
    """2 × all combinations of the indices, where two tensors are summed over one; an ellipsis is not counted."""
    terms, arrow, kept = attribute(node, "equation", b"").decode().replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for term, spec in zip(terms.split(","), inputs, strict=True):
        if spec is None or len(term) != len(spec.shape) or "." in term:
            return 0.0
        for index, extent in zip(term, spec.shape, strict=True):
            sizes[index] = max(sizes.get(index, 1), extent)
    # Without an arrow what is written twice is summed over.
    summed = any(index not in kept if arrow else terms.count(index) > 1 for index in sizes)
    return 2.0 * prod(sizes.values()) if summed and len(inputs) == 2 else 0.0


def _recurrent(_node: NodeProto, inputs: Specs, _outputs: Specs) -> float:
    """Every step multiplies its input and its state with all gates' weights, once per sample and direction."""
    sequence, weights, states = inputs[0], inputs[1], inputs[2]
    if sequence is None or weights is None or states is None or len(sequence.shape) != 3:
        return 0.0
    return 2.0 * sequence.shape[0] * sequence.shape[1] * (_size(weights) + _size(states))


def _attention(node: NodeProto, inputs: Specs, _outputs: Specs) -> float:
    """Scores of every query with every key, and their product with the values; masked products are counted too."""
    query, key, value, past = (*inputs[:3], inputs[4] if len(inputs) > 4 else None)
    if query is None or key is None or value is None or not len(query.shape) == len(key.shape) == len(value.shape):
        return 0.0
    if len(query.shape) == 4:
        batch, heads, queries, width = query.shape
        keys, value_width = key.shape[2], value.shape[3]
    elif len(query.shape) == 3:
        heads, groups = attribute(node, "q_num_heads", 0), attribute(node, "kv_num_heads", 0)
        if not heads or not groups:
            return 0.0
        batch, queries, width = query.shape[0], query.shape[1], query.shape[2] // heads
        keys, value_width = key.shape[1], value.shape[2] // groups
    else:
        return 0.0
    keys += past.shape[2] if past is not None and len(past.shape) == 4 else 0
    return 2.0 * batch * heads * queries * keys * (width + value_width)


def _nbits(node: NodeProto, _inputs: Specs, outputs: Specs) -> float:
    """The product with the unpacked weight."""
    return 2.0 * _size(outputs[0]) * int(attribute(node, "K", 0))


def _projected_attention(_node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    """The projection to queries, keys and values, then attention over them and the past ones."""
    tokens, weight, past = inputs[0], inputs[1], inputs[4] if len(inputs) > 4 else None
    if tokens is None or weight is None or len(tokens.shape) != 3:
        return 0.0
    keys = tokens.shape[1] + (past.shape[3] if past is not None and len(past.shape) == 5 else 0)
    return 2.0 * _size(tokens) * weight.shape[-1] + 4.0 * _size(outputs[0]) * keys


def _multi_head(_node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    key = (inputs[1] if len(inputs) > 1 else None) or inputs[0]
    past = inputs[6] if len(inputs) > 6 else None
    if key is None or len(key.shape) < 3:
        return 0.0
    keys = key.shape[2 if len(key.shape) == 4 else 1] + (past.shape[2] if past is not None else 0)
    return 4.0 * _size(outputs[0]) * keys


def _grouped(_node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    """All queries with all keys that the node returns, of which a causal mask hides some."""
    present, query = outputs[1] if len(outputs) > 1 else None, inputs[0]
    if present is not None and len(present.shape) == 4:
        return 4.0 * _size(outputs[0]) * present.shape[2]
    return 4.0 * _size(outputs[0]) * query.shape[1] if query is not None and len(query.shape) > 1 else 0.0


def _size(spec: TensorSpec | None) -> int:
    return 0 if spec is None else prod(spec.shape)


_FLOPS: Mapping[str, Callable[[NodeProto, Specs, Specs], float]] = {
    "Attention": _attention,
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "ConvTranspose": _convolution,
    "DeformConv": _convolution,
    # Tensor, scale and zero point of the input, then those of the weight.
    "QLinearConv": lambda node, inputs, outputs: _convolution(node, inputs[::3], outputs),
    "Gemm": _product,
    "MatMul": _product,
    "Einsum": _einsum,
    "MatMulInteger": _product,
    "QLinearMatMul": _product,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}

_CONTRIB_FLOPS: Mapping[str, Callable[[NodeProto, Specs, Specs], float]] = {
    "Attention": _projected_attention,
    "DynamicQuantizeMatMul": _product,
    "FusedConv": _convolution,
    "FusedGemm": _product,
    "FusedMatMul": _product,
    "GemmFastGelu": _product,
    "GroupQueryAttention": _grouped,
    "MatMulBnb4": _nbits,
    "MatMulIntegerToFloat": _product,
    "MatMulNBits": _nbits,
    "MultiHeadAttention": _multi_head,
    "TransposeMatMul": _product,
}
"""Ops of domain com.microsoft, by onnxruntime's ContribOperators.md."""


WEIGHT_PREFIX = "weight:"
_UNKNOWN = TensorSpec((), "float32", 0)


def onnx_graph(file: OnnxFile) -> OpGraph:
    """The inference graph of a model, without times.

    Every node is an op with the file's name for it. Values that do not depend on an input, such as initializers and
    what ConstantOfShape makes, are weights: an op of zero time for each one that other nodes read.
    """
    values = values_of(file)
    counter = WorkCounter(values.model)
    graph = values.model.graph
    given = {value.name: _spec(values, value.name) for value in data_inputs(file.model)}
    ops = [
        Op(name, "input", 0.0, outputs=(spec,), output_bytes=spec.bytes, phase="forward")
        for name, spec in given.items()
    ]
    producer: dict[str, tuple[str, int]] = {op.id: (op.id, 0) for op in ops}
    taken = {op.id for op in ops}
    edges: list[Edge] = []
    for node in graph.node:
        if all(name in values.constant for name in node.output if name):
            continue
        for name in reads(node):
            if name in values.constant and name not in producer:
                op_id, spec = _free_name(WEIGHT_PREFIX + name, taken), _spec(values, name)
                weight: dict[str, Any] = {"weight_bytes": spec.bytes, "attrs": {"value": name}}
                ops.append(Op(op_id, "parameter", 0.0, outputs=(spec,), phase="forward", **weight))
                taken.add(op_id)
                producer[name] = (op_id, 0)
        op = _node(node, values, counter, taken)
        ops.append(op)
        taken.add(op.id)
        for name in reads(node):
            source, output = producer[name]
            edges.append(Edge(source, op.id, _spec(values, name).bytes, output, tensor=name))
        producer.update({name: (op.id, place) for place, name in enumerate(node.output) if name})
    if not ops:
        raise FileFormatError(str(file.path), ["all its outputs are constant: there is nothing to plan"])
    result = OpGraph(
        tuple(ops),
        tuple(edges),
        name=graph.name or file.path.stem,
        source=f"read from {file.path.name}",
        capture={
            "entry": str(file.path),
            "mode": "infer",
            "onnx": {"sha256": file.sha256, "dims": dict(file.dims)},
            "args": [{"path": name, "shape": list(spec.shape), "dtype": spec.dtype} for name, spec in given.items()],
        },
    )
    return replace(result, structure_sha256=structure_sha256(result))


def _node(node: Any, values: Values, counter: WorkCounter, taken: set[str]) -> Op:
    work = counter.work_of(node, values.specs)
    made = tuple(_spec(values, name) if name else _UNKNOWN for name in node.output)
    return Op(
        _free_name(node.name, taken),
        f"onnx.{node.op_type}",
        flops=work.flops,
        bytes_accessed=work.bytes,
        dtype=made[0].dtype if made else None,
        outputs=made,
        weight_bytes=work.held_bytes,
        output_bytes=0 if is_view(node) else sum(spec.bytes for spec in made),
        phase="forward",
        attrs={"node": node.name},
    )


def _spec(values: Values, name: str) -> TensorSpec:
    return values.specs.get(name, _UNKNOWN)


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    return name
