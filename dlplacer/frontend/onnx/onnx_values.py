"""Shapes, types and constness of the values of an ONNX graph, of ops of domain com.microsoft by onnxruntime."""

import hashlib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import inliner

from dlplacer.core.errors import FileFormatError, InputError, first_line
from dlplacer.core.op import TensorSpec
from dlplacer.files.text import read_bytes

OLDEST_OPSET = 7
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
    _require_valid(model, where)
    _require_supported_opset(model, where)
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


def _require_supported_opset(model: onnx.ModelProto, where: Path) -> None:
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    newest = onnx.defs.onnx_opset_version()
    if version is not None and version > newest:
        raise FileFormatError(
            str(where), [f"opset {version} is newer than {newest}, the newest of onnx {onnx.__version__}: update onnx"]
        )
    if version is not None and version < OLDEST_OPSET:
        way = "convert it with onnx.version_converter"
        raise FileFormatError(
            str(where), [f"opset {version} is older than {OLDEST_OPSET}, with which runtimes start: {way}"]
        )


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

    A session is opened on the graph without its weights, and not run. Nodes of which it knows no shape stay without.
    """
    given = (*model.graph.value_info, *model.graph.output)
    made = {name for node in model.graph.node if node.domain == MICROSOFT for name in node.output if name}
    made -= {value.name for value in given if _is_fixed(value)}
    if not made or find_spec("onnxruntime") is None:
        return model
    light = _light_copy(model)
    found = _by_session(light, made)
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
