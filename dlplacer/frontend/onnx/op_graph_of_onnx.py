"""An ONNX model as a dataflow graph: inputs, weights and nodes, with their arithmetic and memory traffic."""

from collections import ChainMap, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import onnx
from onnx import NodeProto, numpy_helper

from dlplacer.core.errors import FileFormatError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.files.formats import structure_sha256
from dlplacer.frontend.onnx.onnx_values import MICROSOFT, OnnxFile, data_inputs, free_name, reads, specs_of, values_of

_ENDLESS = 2**31
"""Exporters of ``while`` give the greatest number there is as the most rounds of a loop."""
_VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
_READ_IN_PART = frozenset(("Gather", "GatherElements", "GatherND", "Slice"))
"""Ops that read of their first input no more than what they return: an embedding, the rows of its tokens."""
_ONNX = ("", "ai.onnx")
"""The domain of the ops that are counted: one of the same name in another domain may be anything."""

Specs = Sequence[TensorSpec | None]


class Work(NamedTuple):
    """FLOPs and memory traffic in bytes of a node, and the bytes of the tensors that only its bodies hold."""

    flops: float
    bytes: int
    held_bytes: int = 0


def work_of(node: Any, specs: Mapping[str, TensorSpec], numbers: Mapping[str, int]) -> Work:
    """The work of a node of a model after shape inference, or of one of its subgraphs.

    `specs` are of the values that it can see, `numbers` the whole numbers that the file holds. Of the branches of an If
    the most work of any counts. A loop runs as often as what it stacks is long, else as often as it may, if that is
    a number of the file; else it counts once, as nothing tells.
    """
    inputs = [specs.get(name) if name else None for name in node.input]
    outputs = [specs.get(name) if name else None for name in node.output]
    own_bytes = bytes_of(node, inputs, outputs)
    if node.op_type not in ("If", "Loop", "Scan") or node.domain not in _ONNX:
        return Work(flops_of(node, inputs, outputs), own_bytes)
    bodies = [_work_of_body(entry.g, specs, numbers) for entry in node.attribute if entry.HasField("g")]
    rounds = 1
    if node.op_type == "Loop":
        # Inputs are how often at most, whether at all, and the carried values, which are outputs before the stacked.
        stacked = [spec.shape[0] for spec in outputs[max(0, len(node.input) - 2) :] if spec is not None and spec.shape]
        most = numbers.get(next(iter(node.input), ""), _ENDLESS)
        rounds = stacked[0] if stacked else most if 0 <= most < _ENDLESS else 1
    elif node.op_type == "Scan":
        first = inputs[-attribute(node, "num_scan_inputs", 1)]
        axis = next(iter(attribute(node, "scan_input_axes", [])), 0)
        rounds = first.shape[axis] if first is not None and -len(first.shape) <= axis < len(first.shape) else 1
    flops, moved = (rounds * max(column) for column in list(zip(*bodies, strict=True))[:2])
    return Work(flops, max(own_bytes, moved), sum(body.held_bytes for body in bodies))


def _work_of_body(body: Any, around: Mapping[str, TensorSpec], numbers: Mapping[str, int]) -> Work:
    """The work of one run of a graph that sees the values around it."""
    specs = ChainMap(specs_of(body), dict(around))
    works = [work_of(node, specs, numbers) for node in body.node if node.op_type != "Constant"]
    constants = [name for node in body.node if node.op_type == "Constant" for name in node.output]
    constants += [tensor.name for tensor in body.initializer]
    held = sum(specs[name].bytes for name in constants if name in specs and name not in around)
    flops, moved, inner = (sum(column) for column in zip(*works, Work(0, 0), strict=True))
    return Work(flops, moved, held + inner)


def _numbers(graph: Any) -> dict[str, int]:
    """Whole numbers that a graph holds, by name."""
    held = [(tensor.name, tensor) for tensor in graph.initializer]
    constants = (node for node in graph.node if node.op_type == "Constant" and node.domain in _ONNX)
    held += [(node.output[0], attribute(node, "value", onnx.TensorProto())) for node in constants]
    return {
        name: int(numpy_helper.to_array(tensor).reshape(()))
        for name, tensor in held
        if tensor.data_type == onnx.TensorProto.INT64 and prod(tensor.dims) == 1 and not tensor.external_data
    }


def is_view(node: NodeProto) -> bool:
    """True if an op moves no bytes in inference."""
    return node.op_type in _VIEWS and node.domain in _ONNX


def flops_of(node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    """FLOPs of convolutions, matrix products and recurrences, two per multiply-add; 0 for nodes that only move bytes.

    `inputs` and `outputs` are in the node's order, None for an optional one that is left out.
    """
    table = _FLOPS if node.domain in _ONNX else _CONTRIB_FLOPS if node.domain == MICROSOFT else {}
    try:
        return float(table[node.op_type](node, inputs, outputs)) if node.op_type in table else 0.0
    except (AttributeError, IndexError, ValueError, ZeroDivisionError):
        # An operand is left out, without a known shape, or of a rank that the op does not have.
        return 0.0


def bytes_of(node: NodeProto, inputs: Specs, outputs: Specs) -> int:
    """Bytes read and written, each tensor once; of a tensor that is read in part, that part."""
    if is_view(node):
        return 0
    standard = node.domain in _ONNX
    written = sum(spec.bytes for spec in outputs if spec is not None)
    if standard and node.op_type in ("Shape", "Size"):
        return written
    sizes = {name: spec.bytes for name, spec in zip(node.input, inputs, strict=True) if spec is not None}
    if standard and node.op_type in _READ_IN_PART and node.input and node.input[0] in sizes:
        sizes[node.input[0]] = min(sizes[node.input[0]], written)
    return written + sum(sizes.values())


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """The value of an attribute of a node, or the default."""
    found = (onnx.helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name)
    return next(found, default)


def _convolution(node: NodeProto, inputs: Any, outputs: Any) -> Any:
    """2 × outputs (of a transposed one, inputs) × (channels of a group × kernel): the latter make up the weight."""
    positions = inputs[0] if node.op_type == "ConvTranspose" else outputs[0]
    return 2.0 * prod(positions.shape) * prod(inputs[1].shape[1:])


def _product(node: NodeProto, inputs: Any, outputs: Any) -> Any:
    left = inputs[0].shape
    turned = attribute(node, "transA", 0) and len(left) > 1
    return 2.0 * prod(outputs[0].shape) * left[-2 if turned else -1]


def _einsum(node: NodeProto, inputs: Any, _outputs: Any) -> Any:
    """2 × all combinations of the indices, where two tensors are summed over one; an ellipsis is not counted."""
    terms, arrow, kept = attribute(node, "equation", b"").decode().replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for term, spec in zip(terms.split(","), inputs, strict=True):
        for index, extent in zip(term, spec.shape, strict=True):
            sizes[index] = max(sizes.get(index, 1), extent)
    # Without an arrow what is written twice is summed over.
    summed = any(index not in kept if arrow else terms.count(index) > 1 for index in sizes)
    return 2.0 * prod(sizes.values()) if summed and len(inputs) == 2 and "." not in terms else 0.0


def _recurrent(_node: NodeProto, inputs: Any, _outputs: Any) -> Any:
    """Every step multiplies its input and its state with all gates' weights, once per sample and direction."""
    steps, samples, _ = inputs[0].shape
    return 2.0 * steps * samples * (prod(inputs[1].shape) + prod(inputs[2].shape))


def _attention(node: NodeProto, inputs: Any, _outputs: Any) -> Any:
    """Scores of every query with every key, and their product with the values; masked products are counted too."""
    groups = attribute(node, "kv_num_heads", 0)
    batch, heads, queries, width = _by_head(inputs[0].shape, attribute(node, "q_num_heads", 0))
    keys = _by_head(inputs[1].shape, groups)[2] + _past(inputs, 4, 2)
    return 2.0 * batch * heads * queries * keys * (width + _by_head(inputs[2].shape, groups)[3])


def _by_head(shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
    """The shape with the heads in a dimension of their own."""
    if len(shape) == 4:
        return shape
    batch, tokens, width = shape
    return batch, heads, tokens, width // heads


def _past(inputs: Any, place: int, dim: int) -> int:
    """The tokens of an input that holds past keys; 0 without it."""
    return int(inputs[place].shape[dim]) if len(inputs) > place and inputs[place] is not None else 0


def _projected_attention(_node: NodeProto, inputs: Any, outputs: Any) -> Any:
    """The projection to queries, keys and values, then attention over them and the past ones."""
    _, tokens, _ = inputs[0].shape
    keys = tokens + _past(inputs, 4, 3)
    return 2.0 * prod(inputs[0].shape) * inputs[1].shape[-1] + 4.0 * prod(outputs[0].shape) * keys


def _multi_head(_node: NodeProto, inputs: Any, outputs: Any) -> Any:
    key = ((inputs[1] if len(inputs) > 1 else None) or inputs[0]).shape
    return 4.0 * prod(outputs[0].shape) * (key[2 if len(key) == 4 else 1] + _past(inputs, 6, 2))


def _grouped(_node: NodeProto, inputs: Any, outputs: Any) -> Any:
    """All queries with all keys that the node returns, of which a causal mask hides some."""
    present = outputs[1] if len(outputs) > 1 else None
    return 4.0 * prod(outputs[0].shape) * (inputs[0].shape[1] if present is None else present.shape[2])


def _nbits(node: NodeProto, _inputs: Any, outputs: Any) -> Any:
    """The product with the unpacked weight."""
    return 2.0 * prod(outputs[0].shape) * int(attribute(node, "K", 0))


_FLOPS: Mapping[str, Callable[[NodeProto, Any, Any], Any]] = {
    "Attention": _attention,
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose", "DeformConv"), _convolution),
    # Tensor, scale and zero point of the input, then those of the weight.
    "QLinearConv": lambda node, inputs, outputs: _convolution(node, inputs[::3], outputs),
    **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    "Einsum": _einsum,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}

_PRODUCTS = (
    *("DynamicQuantizeMatMul", "FusedGemm", "FusedMatMul", "GemmFastGelu", "MatMulIntegerToFloat"),
    "TransposeMatMul",
)
_CONTRIB_FLOPS: Mapping[str, Callable[[NodeProto, Any, Any], Any]] = {
    "Attention": _projected_attention,
    "FusedConv": _convolution,
    **dict.fromkeys(_PRODUCTS, _product),
    "GroupQueryAttention": _grouped,
    **dict.fromkeys(("MatMulBnb4", "MatMulNBits"), _nbits),
    "MultiHeadAttention": _multi_head,
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
    graph: Any = values.model.graph
    numbers = _numbers(graph)
    specs = defaultdict(lambda: _UNKNOWN, values.specs)
    given = {value.name: specs[value.name] for value in data_inputs(file.model)}
    ops = {
        name: Op(name, "input", 0.0, outputs=(spec,), output_bytes=spec.bytes, phase="forward")
        for name, spec in given.items()
    }
    producer: dict[str, tuple[str, int]] = {name: (name, 0) for name in given}
    edges: list[Edge] = []
    for node in graph.node:
        if all(name in values.constant for name in node.output if name):
            continue
        read = reads(node)
        for name in read:
            if name in values.constant and name not in producer:
                op_id, spec = free_name(WEIGHT_PREFIX + name, ops, "'"), specs[name]
                weight: dict[str, Any] = {"weight_bytes": spec.bytes, "attrs": {"value": name}}
                ops[op_id] = Op(op_id, "parameter", 0.0, outputs=(spec,), phase="forward", **weight)
                producer[name] = (op_id, 0)
        work = work_of(node, values.specs, numbers)
        made = tuple(specs[name] for name in node.output)
        op_id = free_name(node.name, ops, "'")
        ops[op_id] = Op(
            op_id,
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
        read_from = [(name, *producer[name]) for name in read]
        edges += [Edge(source, op_id, specs[name].bytes, output, tensor=name) for name, source, output in read_from]
        producer.update({name: (op_id, place) for place, name in enumerate(node.output) if name})
    if not ops:
        raise FileFormatError(str(file.path), ["all its outputs are constant: there is nothing to plan"])
    result = OpGraph(
        tuple(ops.values()),
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
