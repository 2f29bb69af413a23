"""An ONNX file, checked, with its axes bound; nothing outside its folder is read and nothing is executed."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import inliner

from dlplacer.core.errors import FileFormatError, InputError, first_line
from dlplacer.files.text import read_bytes

OLDEST_OPSET, CONVERTED_OPSET = 7, 13
"""Files of an older default opset than the first are converted to the second; runtimes start at 7."""
_PROTO_LIMIT_BYTES = 2**31 - 1
SHAPE_ELEMENTS = 2**13
"""Tensors of as many elements may decide shapes; larger ones are weights, of which plans need the shape alone."""


@dataclass(frozen=True)
class OnnxFile:
    """A model from a file, the hash of its bytes, and the axes that the user bound.

    Node names are unique, input shapes fixed, functions of the file expanded where they are called. External data may
    be left in its files.
    """

    model: onnx.ModelProto
    path: Path
    sha256: str
    dims: Mapping[str, int]


def read_onnx(path: str | Path, dims: Mapping[str, int] | None = None, with_weights: bool = False) -> OnnxFile:
    """The model in a file; InputError or FileFormatError names what is wrong with it or its axes.

    Parameters
    ----------
    dims
        Values of the symbolic axes of its inputs, by their names (``batch``) or by place (``input:0``).
    with_weights
        Read the tensors that lie in other files, to run the model. To plan it, shapes suffice: such files may be of any
        size, or missing.
    """
    where, bindings = Path(path), dict(dims or {})
    content = read_bytes(where)
    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise FileFormatError(str(where), [f"no ONNX model: {first_line(error)}"]) from error
    _require_text(model, where)
    _read_external(model, where, with_weights)
    if not model.graph.node and not model.graph.output:
        raise FileFormatError(str(where), ["no ONNX model: it holds no graph"])
    model = _with_output_shapes(model, where)
    _require_valid(model, where)
    model = _with_supported_opset(model, where)
    if model.functions:
        model = inliner.inline_local_functions(model, convert_version=True)
    _name_nodes(model.graph)
    _bind(model.graph, bindings, where)
    return OnnxFile(model, where, hashlib.sha256(content).hexdigest(), bindings)


def data_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller gives: those without an initializer of the same name."""
    held = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in held]


def _read_external(model: Any, where: Path, with_weights: bool) -> None:
    """Make sure that tensors in other files lie in the model's folder; read all of them, or small ones if there."""
    from onnx.external_data_helper import load_external_data_for_tensor

    folder = where.resolve().parent
    wanted: list[tuple[Any, Path]] = []
    for tensor in _external(model):
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        target = (folder / location).resolve()
        if not location or Path(location).is_absolute() or not target.is_relative_to(folder):
            raise FileFormatError(
                str(where), [f"tensor {tensor.name!r} lies in {location!r}, outside the folder of the file: not read"]
            )
        if with_weights and not target.is_file():
            raise FileFormatError(str(where), [f"tensor {tensor.name!r} lies in {location!r}, which is not there"])
        if with_weights or (prod(tensor.dims) <= SHAPE_ELEMENTS and target.is_file()):
            wanted.append((tensor, target))
    try:
        # Asked first: files of language models fill more memory than there is.
        if model.ByteSize() + sum(_length(tensor, target) for tensor, target in wanted) > _PROTO_LIMIT_BYTES:
            told = "its weights exceed the 2 GiB with which onnx runs it; plan it, or export it in parts"
            raise FileFormatError(str(where), [told])
        for tensor, _ in wanted:
            load_external_data_for_tensor(tensor, str(folder))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(str(where), [f"external data: {first_line(error)}"]) from error


def _external(model: Any) -> list[Any]:
    """The tensors of a model that lie in other files."""
    tensors = _tensors(model.graph, *model.functions)
    return [tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL]


def _tensors(*graphs: Any) -> Iterator[onnx.TensorProto]:
    """All tensors that graphs and functions hold: initializers, and constants of their nodes and subgraphs."""
    for graph in graphs:
        yield from getattr(graph, "initializer", ())
        for node in graph.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                yield from _tensors(attribute.g, *attribute.graphs)


def _require_text(message: Any, where: Path) -> None:
    """Protobuf gives bytes for texts that are no UTF-8, and nothing behind it expects them."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            wrong = [
                entry for entry in ([value] if isinstance(value, (str, bytes)) else value) if isinstance(entry, bytes)
            ]
            if wrong:
                raise FileFormatError(str(where), [f"{field.full_name} is {wrong[0][:40]!r}, which is no UTF-8"])
        elif field.type == field.TYPE_MESSAGE:
            for inner in value if hasattr(value, "__len__") else [value]:
                _require_text(inner, where)


def _length(tensor: onnx.TensorProto, target: Path) -> int:
    """Bytes of a tensor in another file: to the end of the file, if the model does not say."""
    told = {entry.key: int(entry.value) for entry in tensor.external_data if entry.key in ("offset", "length")}
    return told.get("length") or target.stat().st_size - told.get("offset", 0)


def _with_output_shapes(model: onnx.ModelProto, where: Path) -> onnx.ModelProto:
    """The model with shapes for the outputs that have none, which runtimes take and onnx's checker does not."""
    if not _shapeless(model.graph):
        return model
    with contextlib.suppress(Exception):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    if lacking := _shapeless(model.graph):
        raise FileFormatError(str(where), [f"{name!r} has no shape, and none follows; give it one" for name in lacking])
    return model


def _shapeless(graph: Any) -> list[str]:
    """Inputs and outputs of a graph that are tensors without a shape."""
    return [
        value.name
        for value in (*graph.input, *graph.output)
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")
    ]


def _require_valid(model: Any, where: Path) -> None:
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise FileFormatError(str(where), [f"initializer {name!r} is sparse, which no plan can place; store it dense"])
    try:
        onnx.checker.check_model(_without_external(model))
    except (onnx.checker.ValidationError, ValueError) as error:
        # Behind the message stands the whole graph.
        told = " ".join(str(error).partition("==> Context")[0].split())
        raise FileFormatError(str(where), [told or type(error).__name__]) from error


def _without_external(model: Any) -> Any:
    """The model, or a copy in which tensors of other files are empty: the checker would look for these files."""
    if not _external(model):
        return model
    copy = deepcopy(model)
    for tensor in _external(copy):
        tensor.ClearField("data_location")
        del tensor.external_data[:]
        tensor.dims[:] = [0]
    return copy


def _with_supported_opset(model: onnx.ModelProto, where: Path) -> onnx.ModelProto:
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    newest = onnx.defs.onnx_opset_version()
    if version is not None and version > newest:
        raise FileFormatError(
            str(where), [f"opset {version} is newer than {newest}, the newest of onnx {onnx.__version__}: update onnx"]
        )
    if version is None or version >= OLDEST_OPSET:
        return model
    try:
        from onnx import version_converter

        return version_converter.convert_version(model, CONVERTED_OPSET)
    except Exception as error:
        raise FileFormatError(
            str(where), [f"opset {version} is older than {OLDEST_OPSET} and cannot be converted: {first_line(error)}"]
        ) from error


def _name_nodes(graph: Any) -> None:
    """Make the names of nodes unique; those that already are stay."""
    taken = {node.name for node in graph.node} | {value.name for value in (*graph.input, *graph.initializer)}
    seen: set[str] = set()
    for number, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            name = f"{node.name or node.op_type}_{number}"
            while name in taken:
                name += "_"
            node.name = name
            taken.add(name)
        seen.add(node.name)


def _bind(graph: Any, bindings: Mapping[str, int], where: Path) -> None:
    held = {tensor.name for tensor in graph.initializer}
    used: set[str] = set()
    open_axes: list[str] = []
    for value in graph.input:
        if value.name in held or not value.type.HasField("tensor_type"):
            continue
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            names = [name for name in (axis.dim_param, f"{value.name}:{place}") if name]
            given = next((name for name in names if name in bindings), None)
            if given is not None:
                if axis.HasField("dim_value") and axis.dim_value != bindings[given] and axis.dim_value > 0:
                    raise InputError(f"{where}: axis {given} is {axis.dim_value} in the file; it cannot be bound again")
                used.add(given)
                axis.dim_value = bindings[given]
            elif not axis.HasField("dim_value") or axis.dim_value < 1:
                open_axes.append(names[0])
    for name, size in bindings.items():
        if name not in used:
            raise InputError(f"{where}: no input has an axis {name!r}; leave out its binding")
        if size < 1:
            raise InputError(f"{where}: axis {name!r} is bound to {size}; it must be at least 1")
    if open_axes:
        listed = ", ".join(dict.fromkeys(open_axes))
        raise InputError(f"{where}: axes {listed} have no size; bind them, as in --dim {open_axes[0]}=1")
