"""Shapes that ops of domain com.microsoft return, by onnxruntime."""

import logging
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any

import onnx

from dlplacer.frontend.onnx.onnx_file import SHAPE_ELEMENTS

MICROSOFT = "com.microsoft"


def can_infer() -> bool:
    """True if onnxruntime is installed."""
    return find_spec("onnxruntime") is not None


def with_contrib_shapes(model: Any) -> Any:
    """The model with the fixed shapes that onnxruntime infers for outputs of its com.microsoft nodes.

    A session is opened on the graph without its weights, and not run. If onnxruntime lacks a kernel on the CPU, its
    symbolic shape inference is asked. Nodes of which neither knows the shape stay without.
    """
    given = (*model.graph.value_info, *model.graph.output)
    made = {name for node in model.graph.node if node.domain == MICROSOFT for name in node.output if name}
    made -= {value.name for value in given if _is_fixed(value)}
    if not made or not can_infer():
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
        onnx.helper.make_tensor_value_info(name, _ELEMENTS[value.type], value.shape)
        for name, value in element.items()
        if value.type in _ELEMENTS and all(isinstance(size, int) for size in value.shape)
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


_ELEMENTS = {
    f"tensor({name})": getattr(onnx.TensorProto, element)
    for name, element in {
        **{name: name.upper() for name in ("float", "float16", "bfloat16", "double", "bool")},
        **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (4, 8, 16, 32, 64)},
    }.items()
}
"""onnxruntime's name of a tensor's type → ONNX's number of its elements."""
