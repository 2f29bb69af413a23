"""Shapes, types and constness of the values of an ONNX graph, of ops of domain com.microsoft by onnxruntime."""

import logging
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any

import onnx

from dlplacer.core.errors import FileFormatError, first_line
from dlplacer.core.op import TensorSpec
from dlplacer.frontend.onnx.onnx_file import SHAPE_ELEMENTS, OnnxFile, data_inputs

MICROSOFT = "com.microsoft"

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
    try:
        inferred = onnx.shape_inference.infer_shapes(file.model, strict_mode=True, data_prop=True)
        if any(node.domain == MICROSOFT for node in file.model.graph.node):
            inferred = _with_contrib_shapes(inferred)
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
        f"{name!r}, an output of {node.op_type} {node.name!r}, {_unplaceable(types.get(name), node.domain)}"
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


def _unplaceable(kind: str | None, domain: str = "") -> str:
    """Why a value cannot be planned."""
    if kind not in (None, "tensor_type"):
        return f"has type {str(kind).removesuffix('_type')}, which has no size; only tensors can be planned"
    if domain not in _STANDARD_DOMAINS:
        way = "" if domain != MICROSOFT or find_spec("onnxruntime") else "install onnxruntime, which infers it, or "
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
    name = onnx.helper.tensor_dtype_to_string(element).removeprefix("TensorProto.")
    dtype, bits = "string", _TEXT_BITS
    if name != "STRING":
        kind = onnx.helper.tensor_dtype_to_np_dtype(element)
        dtype, bits = kind.name, _PACKED_BITS.get(name, 8 * kind.itemsize)
    return TensorSpec(shape, dtype, -(-bits * prod(shape) // 8))


def _with_contrib_shapes(model: Any) -> Any:
    """The model with the fixed shapes that onnxruntime infers for outputs of its com.microsoft nodes.

    A session is opened on the graph without its weights, and not run. If onnxruntime lacks a kernel on the CPU, its
    symbolic shape inference is asked. Nodes of which neither knows the shape stay without.
    """
    given = (*model.graph.value_info, *model.graph.output)
    made = {name for node in model.graph.node if node.domain == MICROSOFT for name in node.output if name}
    made -= {value.name for value in given if _is_fixed(value)}
    if not made or find_spec("onnxruntime") is None:
        return model
    light = _light_copy(model)
    found = _by_session(light, made) or _by_symbols(light, made)
    names = {value.name for value in found}
    kept = [value for value in model.graph.value_info if value.name not in names]
    completed = deepcopy(model)
    del completed.graph.value_info[:]
    completed.graph.value_info.extend([*kept, *found])
    return completed


def _light_copy(model: Any) -> Any:
    """The model with inputs in place of its weights."""
    copy = deepcopy(model)
    graph, held = copy.graph, list(copy.graph.initializer)
    inputs = {value.name for value in graph.input}
    del graph.initializer[:]
    for tensor in held:
        if prod(tensor.dims) <= SHAPE_ELEMENTS and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return copy


def _by_session(model: Any, names: set[str]) -> list[Any]:
    import onnxruntime

    copy = deepcopy(model)
    copy.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, sorted(names)))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # it raises errors of several classes of its own
        return []
    element = {value.name: value for value in session.get_outputs() if value.name in names}
    return [
        onnx.helper.make_tensor_value_info(name, _RUNTIME_ELEMENTS[value.type], value.shape)
        for name, value in element.items()
        if value.type in _RUNTIME_ELEMENTS and all(isinstance(size, int) for size in value.shape)
    ]


def _by_symbols(model: Any, names: set[str]) -> list[Any]:
    try:
        tool: Any = import_module("onnxruntime.tools.symbolic_shape_infer")
    except ImportError:  # it needs sympy
        return []
    level = tool.logger.level
    tool.logger.setLevel(logging.CRITICAL)
    try:
        # Its public function writes a model that it cannot complete into the current directory.
        inference: Any = tool.SymbolicShapeInference(2**31 - 1, True, False, 0)
        inference._preprocess(model)
        while inference.run_:
            inference._infer_impl()
        inference._update_output_from_vi()
        inferred: Any = inference.out_mp_
    except Exception:  # it asserts what it expects of a model
        return []
    finally:
        tool.logger.setLevel(level)
    return [value for value in inferred.graph.value_info if value.name in names and _is_fixed(value)]


def _is_fixed(value: Any) -> bool:
    kind = value.type.tensor_type
    return bool(kind.elem_type) and kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim)


_RUNTIME_ELEMENTS = {
    f"tensor({name})": getattr(onnx.TensorProto, element)
    for name, element in {
        **{name: name.upper() for name in ("float", "float16", "bfloat16", "double", "bool")},
        **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (4, 8, 16, 32, 64)},
    }.items()
}
"""onnxruntime's name of a tensor's type → ONNX's number of its elements."""
