"""Arithmetic and memory traffic of ONNX nodes, for the roofline."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import onnx
from onnx import NodeProto

from dlplacer.core.op import TensorSpec
from dlplacer.frontend.onnx.contrib_shapes import MICROSOFT

_VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
_READ_IN_PART = frozenset(("Gather", "GatherElements", "GatherND", "Slice"))
"""Ops that read of their first input no more than what they return: an embedding, the rows of its tokens."""
_OF_SHAPES = frozenset(("Shape", "Size"))
_ONNX = ("", "ai.onnx")
"""The domain of the ops that are counted: one of the same name in another domain may be anything."""

Specs = Sequence[TensorSpec | None]


def is_standard(node: NodeProto) -> bool:
    """True if a node is of ONNX's own domain."""
    return node.domain in _ONNX


def is_view(node: NodeProto) -> bool:
    """True if an op moves no bytes in inference."""
    return node.op_type in _VIEWS and is_standard(node)


def flops_of(node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    """FLOPs of convolutions, matrix products and recurrences, two per multiply-add; 0 for nodes that only move bytes.

    Parameters
    ----------
    inputs, outputs
        In the node's order; None for an optional one that is left out.
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


def _quantized_convolution(node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    """Tensor, scale and zero point of the input, then those of the weight."""
    return _convolution(node, inputs[::3], outputs)


def _gemm(node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    left = inputs[0]
    # The shape of a constant may be unknown, where it was made by an op whose output's size depends on the data.
    if left is None or len(left.shape) != 2:
        return 0.0
    return 2.0 * _size(outputs[0]) * left.shape[0 if attribute(node, "transA", 0) else 1]


def _matmul(_node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    left = inputs[0]
    return 2.0 * _size(outputs[0]) * left.shape[-1] if left is not None and left.shape else 0.0


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
    """The product with the unpacked weight; unpacking it is memory traffic, and counted as such."""
    return 2.0 * _size(outputs[0]) * int(attribute(node, "K", 0))


def _fused_matmul(node: NodeProto, inputs: Specs, outputs: Specs) -> float:
    left = inputs[0]
    if left is None or not left.shape:
        return 0.0
    return 2.0 * _size(outputs[0]) * left.shape[-2 if attribute(node, "transA", 0) and len(left.shape) > 1 else -1]


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
    "QLinearConv": _quantized_convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}

_CONTRIB_FLOPS: Mapping[str, Callable[[NodeProto, Specs, Specs], float]] = {
    "Attention": _projected_attention,
    "DynamicQuantizeMatMul": _matmul,
    "FusedConv": _convolution,
    "FusedGemm": _gemm,
    "FusedMatMul": _fused_matmul,
    "GemmFastGelu": _matmul,
    "GroupQueryAttention": _grouped,
    "MatMulBnb4": _nbits,
    "MatMulIntegerToFloat": _matmul,
    "MatMulNBits": _nbits,
    "MultiHeadAttention": _multi_head,
    "TransposeMatMul": _fused_matmul,
}
"""Ops of domain com.microsoft, by onnxruntime's ContribOperators.md."""
