"""Shapes, types and constness of the values of an ONNX graph."""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx

from dlplacer.core.errors import FileFormatError, first_line
from dlplacer.core.op import TensorSpec
from dlplacer.frontend.onnx.contrib_shapes import MICROSOFT, can_infer, with_contrib_shapes
from dlplacer.frontend.onnx.onnx_file import OnnxFile, data_inputs

_RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)
_TEXT_BITS = 128
_STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
"""Types of which several elements share a byte → bits of an element."""


@dataclass(frozen=True)
class Values:
    """The values of a graph by name; `model` has their shapes too, and those of the values inside its subgraphs."""

    specs: dict[str, TensorSpec]
    constant: frozenset[str]
    """Values that depend on no input: initializers, and results of nodes that read only these."""
    model: onnx.ModelProto


def values_of(file: OnnxFile) -> Values:
    """Shapes by inference over the whole graph, with the data of shape computations propagated.

    Refused are types that contradict each other, and shapes that depend on the data; the error names value and op.
    """
    known = {*_STANDARD_DOMAINS, *(function.domain for function in file.model.functions)}
    try:
        inferred = onnx.shape_inference.infer_shapes(file.model, strict_mode=True, data_prop=True)
        if any(node.domain == MICROSOFT for node in file.model.graph.node):
            inferred = with_contrib_shapes(inferred)
            inferred = onnx.shape_inference.infer_shapes(inferred, strict_mode=True, data_prop=True)
    except Exception as error:
        raise FileFormatError(str(file.path), [f"shape inference: {first_line(error)}"]) from error
    graph: Any = inferred.graph
    try:
        specs, *_ = [specs_of(each) for each in (graph, *_bodies(graph))]
    except KeyError as error:
        raise FileFormatError(
            str(file.path), [f"a tensor has element type {error}, which onnx does not know"]
        ) from None
    constant = _constant(file.model)
    needed = {name for node in file.model.graph.node for name in reads(node)}
    needed.update(value.name for value in file.model.graph.output)
    types = {value.name: value.type.WhichOneof("value") for value in (*graph.input, *graph.value_info, *graph.output)}
    missing = [
        f"{value.name!r}, an input, {_unplaceable(types.get(value.name))}"
        for value in data_inputs(file.model)
        if value.name not in specs
    ]
    missing += [
        f"{name!r}, an output of {node.op_type} {node.name!r}, {_unplaceable(types.get(name), known, node.domain)}"
        for node in file.model.graph.node
        for name in node.output
        if name in needed and name not in specs and name not in constant
    ]
    if missing:
        raise FileFormatError(str(file.path), missing[:5])
    return Values(specs, constant, inferred)


def specs_of(graph: Any) -> dict[str, TensorSpec]:
    """Name → shape, dtype and bytes of the values of a graph, without those of its subgraphs, that have a shape."""
    specs = {tensor.name: _spec(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        found = _of_value_info(value)
        if found is not None:
            specs.setdefault(value.name, found)
    return specs


def _unplaceable(kind: str | None, known: Container[str] = (), domain: str | None = None) -> str:
    """Why a value cannot be planned."""
    if kind not in (None, "tensor_type"):
        return f"has type {str(kind).removesuffix('_type')}, which has no size; only tensors can be planned"
    if domain is not None and domain not in known:
        way = "" if domain != MICROSOFT or can_infer() else "install onnxruntime, which infers it, or "
        return f"has no known shape: onnx does not know the ops of domain {domain!r}; {way}give its shape in value_info"
    return "has no fixed shape: its size depends on the data; if it is fixed, give its shape in value_info"


def reads(node: onnx.NodeProto) -> list[str]:
    """Names of the values that a node reads, those of its subgraphs from outside included, each once."""
    names = [name for name in node.input if name]
    for body in _own_bodies(node):
        names += _free(body)
    return list(dict.fromkeys(names))


def _free(graph: Any) -> Iterator[str]:
    """Values that a subgraph takes from around it."""
    own = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in own)
        own.update(node.output)
    yield from (value.name for value in graph.output if value.name not in own)


def _own_bodies(node: Any) -> Iterator[Any]:
    """The subgraphs of a node, without theirs."""
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


def _bodies(graph: Any) -> Iterator[Any]:
    """All subgraphs of a graph's nodes."""
    for node in graph.node:
        for body in _own_bodies(node):
            yield body
            yield from _bodies(body)


def _constant(model: onnx.ModelProto) -> frozenset[str]:
    given = {value.name for value in data_inputs(model)}
    constant = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        sources = reads(node)
        if not _draws(node) and not given.intersection(sources) and all(name in constant for name in sources):
            constant.update(name for name in node.output if name)
    return frozenset(constant)


def _draws(node: Any) -> bool:
    """True if a node, or one inside it, draws random numbers."""
    return node.op_type in _RANDOM or any(_draws(inner) for body in _own_bodies(node) for inner in body.node)


def _of_value_info(value: Any) -> TensorSpec | None:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    if any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in dims):
        return None
    return _spec(value.type.tensor_type.elem_type, tuple(dim.dim_value for dim in dims))


def _spec(element: int, shape: tuple[int, ...]) -> TensorSpec:
    dtype, bits = _element(element)
    return TensorSpec(shape, dtype, -(-bits * prod(shape) // 8))


def _element(element: int) -> tuple[str, int]:
    """Name and bits of an element type."""
    name = onnx.helper.tensor_dtype_to_string(element).removeprefix("TensorProto.")
    if name == "STRING":
        return "string", _TEXT_BITS
    kind = onnx.helper.tensor_dtype_to_np_dtype(element)
    return kind.name, _PACKED_BITS.get(name, 8 * kind.itemsize)


ELEMENTS = {_element(element)[0]: element for element in onnx.helper.get_all_tensor_dtypes()}
"""The name of an element type in a `TensorSpec` → ONNX's number of it."""
