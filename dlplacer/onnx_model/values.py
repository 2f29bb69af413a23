"""Shapes, types and constness of the values of an ONNX graph."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from dlplacer.errors import FileFormatError
from dlplacer.graph import TensorSpec
from dlplacer.onnx_model.load import OnnxFile, data_inputs

_RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)
_TEXT_BYTES = 16


@dataclass(frozen=True)
class Values:
    """What is known of the values of a graph.

    Attributes
    ----------
    specs
        Value name → shape, dtype, bytes.
    constant
        Names of the values that do not depend on any input: initializers, and what nodes make of them alone.
    """

    specs: dict[str, TensorSpec]
    constant: frozenset[str]


def values_of(file: OnnxFile) -> Values:
    """Shapes by inference over the whole graph, with the data of shape computations propagated.

    Raises
    ------
    FileFormatError
        If types contradict each other, or a shape depends on the data; names the value and the op that makes it.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(file.model, strict_mode=True, data_prop=True)
    except Exception as error:
        message = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise FileFormatError(str(file.path), [f"shape inference: {message}"]) from error
    graph = inferred.graph
    specs = {tensor.name: _spec(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        found = _of_value_info(value)
        if found is not None:
            specs.setdefault(value.name, found)
    constant = _constant(file.model)
    needed = {name for node in file.model.graph.node for name in reads(node)}
    needed.update(value.name for value in file.model.graph.output)
    missing = [
        f"{name!r}, an output of {node.op_type} {node.name!r}, has no fixed shape: its size depends on the data"
        for node in file.model.graph.node
        for name in node.output
        if name in needed and name not in specs and name not in constant
    ]
    if missing:
        raise FileFormatError(str(file.path), missing[:5])
    return Values(specs, constant)


def reads(node: Any) -> list[str]:
    """Names of the values that a node reads, those of its subgraphs from outside included, each once."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            names += _free(inner)
    return list(dict.fromkeys(names))


def _free(graph: Any) -> Iterator[str]:
    """Values that a subgraph takes from around it."""
    own = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in own)
        own.update(node.output)
    yield from (value.name for value in graph.output if value.name not in own)


def _constant(model: Any) -> frozenset[str]:
    given = {value.name for value in data_inputs(model)}
    constant = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        sources = reads(node)
        if (
            node.op_type not in _RANDOM
            and not given.intersection(sources)
            and all(name in constant for name in sources)
        ):
            constant.update(name for name in node.output if name)
    return frozenset(constant)


def _of_value_info(value: Any) -> TensorSpec | None:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    if any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in dims):
        return None
    return _spec(value.type.tensor_type.elem_type, tuple(dim.dim_value for dim in dims))


def _spec(element: int, shape: tuple[int, ...]) -> TensorSpec:
    if element == onnx.TensorProto.STRING:
        return TensorSpec(shape, "string", _TEXT_BYTES * int(np.prod(shape, dtype=np.int64)))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
    return TensorSpec(shape, dtype.name, dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
