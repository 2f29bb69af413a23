"""An ONNX model as a dataflow graph: inputs, weights and nodes with their arithmetic and memory traffic."""

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
"""Iteration limits of at least this number count as none: exporters of ``while`` give a loop the largest integer."""
_VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
_READ_IN_PART = frozenset(("Gather", "GatherElements", "GatherND", "Slice"))
"""Ops that read only the returned part of their first input: an embedding reads the rows of its tokens."""
_ONNX = ("", "ai.onnx")
"""Names of the domain whose ops are counted; an op of the same name in another domain may be anything."""

Specs = Sequence[TensorSpec | None]


class NodeWork(NamedTuple):
    """FLOPs and memory traffic in bytes of a node, and the bytes of tensors held only in its subgraphs."""

    flops: float
    bytes: int
    held_bytes: int = 0


def work_of(node: Any, specs: Mapping[str, TensorSpec], numbers: Mapping[str, int]) -> NodeWork:
    """The work of a node in a model, or in a subgraph of the model, after shape inference.

    `specs`: shapes of values visible to the node; `numbers`: name → integer constant in the file. An If counts as much
    as its largest branch. A Loop's body counts once per element of a stacked output, else up to its limit, else once.
    """
    inputs = [specs.get(name) if name else None for name in node.input]
    outputs = [specs.get(name) if name else None for name in node.output]
    own_bytes = bytes_of(node, inputs, outputs)
    if node.op_type not in ("If", "Loop", "Scan") or node.domain not in _ONNX:
        return NodeWork(flops_of(node, inputs, outputs), own_bytes)
    rounds = 1
    if node.op_type == "Loop":
        # Inputs: maximum iterations, condition, carried values. Outputs: carried values, then stacked ones.
        stacked = [spec.shape[0] for spec in outputs[max(0, len(node.input) - 2) :] if spec is not None and spec.shape]
        most = numbers.get(next(iter(node.input), ""), _ENDLESS)
        rounds = stacked[0] if stacked else most if 0 <= most < _ENDLESS else 1
    elif node.op_type == "Scan":
        first = inputs[-attribute(node, "num_scan_inputs", 1)]
        axis = next(iter(attribute(node, "scan_input_axes", [])), 0)
        rounds = first.shape[axis] if first is not None and -len(first.shape) <= axis < len(first.shape) else 1
    flops, moved, held = 0.0, 0, 0
    for body in (entry.g for entry in node.attribute if entry.HasField("g")):
        seen = ChainMap(specs_of(body), dict(specs))
        works = [work_of(inner, seen, numbers) for inner in body.node if inner.op_type != "Constant"]
        constants = [name for inner in body.node if inner.op_type == "Constant" for name in inner.output]
        constants += [tensor.name for tensor in body.initializer]
        held += sum(seen[name].bytes for name in constants if name in seen and name not in specs)
        each = [sum(column) for column in zip(*works, NodeWork(0, 0), strict=True)]
        flops, moved, held = max(flops, each[0]), max(moved, int(each[1])), held + int(each[2])
    return NodeWork(rounds * flops, max(own_bytes, rounds * moved), held)


def _numbers(graph: Any) -> dict[str, int]:
    """The whole numbers in a graph, by name."""
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

    `inputs` and `outputs` are in the node's order; None stands for a tensor that is omitted or has no known shape.
    """
    table = _FLOPS if node.domain in _ONNX else _CONTRIB_FLOPS if node.domain == MICROSOFT else {}
    read, made = ([spec and spec.shape for spec in specs] for specs in (inputs, outputs))
    try:
        return float(table[node.op_type](node, read, made)) if node.op_type in table else 0.0
    except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError):
        # An operand is omitted, has no known shape, or has a rank that the op does not allow.
        return 0.0


def bytes_of(node: NodeProto, inputs: Specs, outputs: Specs) -> int:
    """Bytes read and written, each tensor once; of a tensor that is read in part, only that part counts."""
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


def _convolution(node: NodeProto, read: Any, made: Any) -> Any:
    """2 × output elements (if transposed, input elements) × channels of a group × kernel size."""
    return 2.0 * prod(read[0] if node.op_type == "ConvTranspose" else made[0]) * prod(read[1][1:])


def _product(node: NodeProto, read: Any, made: Any) -> Any:
    turned = attribute(node, "transA", 0) and len(read[0]) > 1
    return 2.0 * prod(made[0]) * read[0][-2 if turned else -1]


def _einsum(node: NodeProto, read: Any, _made: Any) -> Any:
    """2 × all index combinations if two tensors are summed over an index, else 0; 0 with an ellipsis."""
    terms, arrow, kept = attribute(node, "equation", b"").decode().replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms.split(","), read, strict=True):
        for index, extent in zip(term, shape, strict=True):
            sizes[index] = max(sizes.get(index, 1), extent)
    # Without an arrow, repeated indices are summed over.
    summed = any(index not in kept if arrow else terms.count(index) > 1 for index in sizes)
    return 2.0 * prod(sizes.values()) if summed and len(read) == 2 and "." not in terms else 0.0


def _recurrent(_node: NodeProto, read: Any, _made: Any) -> Any:
    """Every step multiplies its input and its state by all gates' weights, once per sample and direction."""
    steps, samples, _ = read[0]
    return 2.0 * steps * samples * (prod(read[1]) + prod(read[2]))


def _attention(node: NodeProto, read: Any, _made: Any) -> Any:
    """Scores of every query with every key, then their product with the values; masked products count too."""

    def by_head(shape: tuple[int, ...], heads: str) -> tuple[int, ...]:
        count = attribute(node, heads, 0)
        return shape if len(shape) == 4 else (shape[0], count, shape[1], shape[2] // count)

    batch, heads, queries, width = by_head(read[0], "q_num_heads")
    _, _, keys, _ = by_head(read[1], "kv_num_heads")
    both = width + by_head(read[2], "kv_num_heads")[3]
    return 2.0 * batch * heads * queries * (keys + _past(read, 4, 2)) * both


def _past(read: Any, place: int, dim: int) -> int:
    """The number of tokens in an input of past keys; 0 without it."""
    return int(read[place][dim]) if len(read) > place and read[place] is not None else 0


def _projected_attention(_node: NodeProto, read: Any, made: Any) -> Any:
    """The projection to queries, keys and values, then attention over current and past tokens."""
    _, tokens, _ = read[0]
    return 2.0 * prod(read[0]) * read[1][-1] + 4.0 * prod(made[0]) * (tokens + _past(read, 4, 3))


def _multi_head(_node: NodeProto, read: Any, made: Any) -> Any:
    key = (read[1] if len(read) > 1 else None) or read[0]
    return 4.0 * prod(made[0]) * (key[2 if len(key) == 4 else 1] + _past(read, 6, 2))


def _grouped(_node: NodeProto, read: Any, made: Any) -> Any:
    """Products of all queries with all keys that the node returns, including keys hidden by a causal mask."""
    present = made[1] if len(made) > 1 else None
    return 4.0 * prod(made[0]) * (read[0][1] if present is None else present[2])


_FLOPS: Mapping[str, Callable[[NodeProto, Any, Any], Any]] = {
    "Attention": _attention,
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose", "DeformConv"), _convolution),
    # Tensor, scale and zero point of the input, then the same of the weight.
    "QLinearConv": lambda node, read, made: _convolution(node, read[::3], made),
    **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    "Einsum": _einsum,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}

_PRODUCTS = """
DynamicQuantizeMatMul FusedGemm FusedMatMul GemmFastGelu MatMulIntegerToFloat TransposeMatMul
"""
_CONTRIB_FLOPS: Mapping[str, Callable[[NodeProto, Any, Any], Any]] = {
    "Attention": _projected_attention,
    "FusedConv": _convolution,
    **dict.fromkeys(_PRODUCTS.split(), _product),
    "GroupQueryAttention": _grouped,
    # The product with the unpacked weight.
    **dict.fromkeys(("MatMulBnb4", "MatMulNBits"), lambda node, _, made: 2.0 * prod(made[0]) * attribute(node, "K", 0)),
    "MultiHeadAttention": _multi_head,
}
"""Ops of domain com.microsoft, by onnxruntime's ContribOperators.md."""


WEIGHT_PREFIX = "weight:"
_UNKNOWN = TensorSpec((), "float32", 0)


def onnx_graph(file: OnnxFile) -> OpGraph:
    """The inference graph of a model, without times.

    Every node is an op with its name in the file. Values that depend on no input, such as initializers and results of
    ConstantOfShape, are weights: each one that other nodes read is a zero-time op.
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
        raise FileFormatError(str(file.path), ["all outputs are constant; export a model that computes one"])
    capture = {
        "entry": str(file.path),
        "mode": "infer",
        "onnx": {"sha256": file.sha256, "dims": dict(file.dims)},
        "args": [{"path": name, "shape": list(spec.shape), "dtype": spec.dtype} for name, spec in given.items()],
    }
    name, source = graph.name or file.path.stem, f"read from {file.path.name}"
    result = OpGraph(tuple(ops.values()), tuple(edges), name=name, source=source, capture=capture)
    return replace(result, structure_sha256=structure_sha256(result))
