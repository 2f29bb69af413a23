"""Read ONNX files; infer shapes, types and constness of values, with onnxruntime for results of com.microsoft ops."""

import hashlib
from collections.abc import Container, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import inliner
from onnx.external_data_helper import load_external_data_for_tensor

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.op import TensorSpec
from dlplacer.files.text import read_bytes

OLDEST_OPSET = 7
_PROTO_LIMIT_BYTES = 2**31 - 1
SHAPE_ELEMENTS = 2**13
"""Most elements of a tensor that may decide shapes; larger ones are weights, and plans need only their shape."""
MICROSOFT = "com.microsoft"
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
_TEXT_BITS = 128
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
"""Types with several elements per byte → bits per element."""


@dataclass(frozen=True)
class OnnxFile:
    """A model from a file, the hash of its bytes, and the axes that the user bound.

    Node names are unique, input shapes are fixed, and calls of the file's functions are inlined. External data may be
    left in its files.
    """

    model: onnx.ModelProto
    path: Path
    sha256: str
    dims: Mapping[str, int]


def read_onnx(path: str | Path, dims: Mapping[str, int] | None = None, with_weights: bool = False) -> OnnxFile:
    """The model in a file; a FileFormatError names the mistake in the file or in the axes.

    `dims`: sizes of the inputs' symbolic axes, by name (``batch``) or place (``input:0``). `with_weights`: read
    tensors in other files too, to run the model; to plan it, these files may be missing.
    """
    where, bindings = Path(path), dict(dims or {})
    content = read_bytes(where)
    try:
        model = onnx.load_model_from_string(content)
        _require_text(model)
        _read_external(model, where.resolve().parent, with_weights)
        _require_plannable(model)
        if model.functions:
            model = inliner.inline_local_functions(model, convert_version=True)
        _name_nodes(model.graph)
        _bind(model, bindings)
    except Exception as error:
        # The checker appends the whole graph to its message.
        told = " ".join(str(error).partition("==> Context")[0].split())
        known = isinstance(error, (InputError, onnx.checker.ValidationError)) and told
        raise FileFormatError(
            str(where), [told if known else f"no ONNX model: {told or type(error).__name__}"]
        ) from error
    return OnnxFile(model, where, hashlib.sha256(content).hexdigest(), bindings)


def data_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller must give: those without an initializer of the same name."""
    held = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in held]


def _require_text(message: Any) -> None:
    """Refuse strings that are not UTF-8: Protobuf returns bytes for them, which later code does not expect."""
    for field, value in message.ListFields():
        for each in value if not isinstance(value, (str, bytes)) and hasattr(value, "__len__") else [value]:
            if field.type == field.TYPE_MESSAGE:
                _require_text(each)
            elif field.type == field.TYPE_STRING and isinstance(each, bytes):
                raise InputError(f"{field.full_name} is {each[:40]!r}, which is no UTF-8; mend the file")


def _read_external(model: Any, folder: Path, with_weights: bool) -> None:
    """Check that tensors in other files are inside the model's folder; read all, or only small ones that exist."""
    wanted = []
    for tensor in _external(model):
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        target = (folder / location).resolve()
        if not location or Path(location).is_absolute() or not target.is_relative_to(folder):
            raise InputError(f"tensor {tensor.name!r} lies in {location!r}, outside the folder of the file: not read")
        if with_weights and not target.is_file():
            raise InputError(f"tensor {tensor.name!r} lies in {location!r}, which is not there; give all files")
        if with_weights or (prod(tensor.dims) <= SHAPE_ELEMENTS and target.is_file()):
            wanted.append(tensor)
    # Checked first: files of language models can exceed the memory.
    sizes = (spec.bytes for tensor in wanted if (spec := _spec(tensor.data_type, tensor.dims)) is not None)
    if model.ByteSize() + sum(sizes) > _PROTO_LIMIT_BYTES:
        raise InputError("its weights exceed the 2 GiB up to which onnx runs a model; plan it, or export it in parts")
    for tensor in wanted:
        load_external_data_for_tensor(tensor, str(folder))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _external(model: Any) -> list[Any]:
    """The tensors of a model that are stored in other files."""
    return [each for each in _tensors(model.graph, *model.functions) if each.data_location == onnx.TensorProto.EXTERNAL]


def _tensors(*graphs: Any) -> Iterator[onnx.TensorProto]:
    """All tensors in graphs and functions: initializers, and constants of their nodes and subgraphs."""
    for graph in graphs:
        yield from getattr(graph, "initializer", ())
        for node in graph.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                yield from _tensors(attribute.g, *attribute.graphs)


def _require_plannable(model: Any) -> None:
    if not model.graph.node and not model.graph.output:
        raise InputError("no ONNX model: it holds no graph; give a file that onnx.save wrote")
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise InputError(f"initializer {name!r} is sparse, which no plan can place; store it dense")
    newest, known = onnx.defs.onnx_opset_version(), f"of onnx {onnx.__version__}: update onnx"
    for version in (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")):
        if version > newest:
            raise InputError(f"opset {version} is newer than {newest}, the newest {known}")
        if version < OLDEST_OPSET:
            raise InputError(f"opset {version} is older than {OLDEST_OPSET}: convert it with onnx.version_converter")
    if _external(model):
        # The checker would look for the files of external tensors.
        model = deepcopy(model)
        for tensor in _external(model):
            tensor.ClearField("data_location")
            del tensor.external_data[:]
            tensor.dims[:] = [0]
    onnx.checker.check_model(model)


def _name_nodes(graph: Any) -> None:
    """Make node names unique; names that are already unique stay."""
    taken = {each.name for each in (*graph.node, *graph.input, *graph.initializer)}
    seen: set[str] = {""}
    for number, node in enumerate(graph.node):
        if node.name in seen:
            node.name = free_name(f"{node.name or node.op_type}_{number}", taken, "_")
        taken.add(node.name)
        seen.add(node.name)


def free_name(name: str, taken: Container[str], mark: str) -> str:
    """The name, with marks appended until it is not taken."""
    while name in taken:
        name += mark
    return name


def _bind(model: Any, bindings: Mapping[str, int]) -> None:
    used: set[str] = set()
    open_axes: list[str] = []
    for value in data_inputs(model):
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            names = [name for name in (axis.dim_param, f"{value.name}:{place}") if name]
            given = next((name for name in names if name in bindings), None)
            if given is not None:
                if axis.dim_value not in (0, bindings[given]):
                    raise InputError(f"axis {given} is {axis.dim_value} in the file; it cannot be bound again")
                used.add(given)
                axis.dim_value = bindings[given]
            elif axis.dim_value < 1:
                open_axes.append(names[0])
    for name, size in bindings.items():
        if name not in used:
            raise InputError(f"no input has an axis {name!r}; leave out its binding")
        if size < 1:
            raise InputError(f"axis {name!r} is bound to {size}; it must be at least 1")
    if open_axes:
        listed = ", ".join(dict.fromkeys(open_axes))
        raise InputError(f"axes {listed} have no size; bind them, as in --dim {open_axes[0]}=1")


@dataclass(frozen=True)
class Values:
    """The values of a graph by name; `model` also has their shapes, and the shapes of values inside subgraphs.

    `constant` values depend on no input: initializers, and results of nodes that read only constants, unless random.
    """

    specs: dict[str, TensorSpec]
    constant: frozenset[str]
    model: onnx.ModelProto


def values_of(file: OnnxFile) -> Values:
    """The values of a graph, with shapes inferred over the whole graph; the data of shape computations are propagated.

    A FileFormatError names value and op if types contradict each other, or a shape depends on data.
    """
    model = file.model
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        if any(node.domain == MICROSOFT for node in model.graph.node):
            _add_contrib_shapes(inferred)
            inferred = onnx.shape_inference.infer_shapes(inferred, strict_mode=True, data_prop=True)
    except Exception as error:
        raise FileFormatError(str(file.path), [f"shape inference: {str(error).splitlines()[0]}"]) from error
    graph: Any = inferred.graph
    specs, constant = specs_of(graph), {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if not _draws(node) and constant.issuperset(reads(node)):
            constant.update(filter(None, node.output))
    needed = {name for node in model.graph.node for name in reads(node)} | {value.name for value in model.graph.output}
    types = {value.name: value.type.WhichOneof("value") for value in (*graph.input, *graph.value_info, *graph.output)}
    made = [(value.name, "an input", "") for value in data_inputs(model)]
    for node in model.graph.node:
        origin = f"an output of {node.op_type} {node.name!r}"
        made += [(name, origin, node.domain) for name in node.output if name in needed and name not in constant]
    missing = []
    for name, origin, domain in (each for each in made if each[0] not in specs):
        kind, way = types.get(name), "give its shape in value_info"
        if kind not in (None, "tensor_type"):
            reason = f"has type {str(kind).removesuffix('_type')}, which has no size; only tensors can be planned"
        elif domain in ("", "ai.onnx", "ai.onnx.ml"):
            reason = f"has no fixed shape: its size depends on the data; if it is fixed, {way}"
        else:
            install = "install onnxruntime, which infers it, or "
            ways = way if domain != MICROSOFT or find_spec("onnxruntime") else install + way
            reason = f"has no known shape: onnx does not know the ops of domain {domain!r}; {ways}"
        missing.append(f"{name!r}, {origin}, {reason}")
    if missing:
        raise FileFormatError(str(file.path), missing[:5])
    return Values(specs, frozenset(constant), inferred)


def specs_of(graph: Any) -> dict[str, TensorSpec]:
    """Name → shape, dtype and bytes of each value of a graph that has a shape; subgraphs are not included."""
    found = {tensor.name: _spec(tensor.data_type, tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        dims = kind.shape.dim
        if kind.HasField("shape") and all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
            found.setdefault(value.name, _spec(kind.elem_type, [dim.dim_value for dim in dims]))
    return {name: spec for name, spec in found.items() if spec is not None}


def _spec(element: int, shape: Any) -> TensorSpec | None:
    """The spec of a tensor; None if onnx does not know its element type."""
    types: Any = onnx.TensorProto.DataType
    if not element or element not in types.values():
        return None
    name = types.Name(element)
    kind = onnx.helper.tensor_dtype_to_np_dtype(element)
    bits = _TEXT_BITS if name == "STRING" else _PACKED_BITS.get(name, 8 * kind.itemsize)
    return TensorSpec(tuple(shape), "string" if name == "STRING" else kind.name, -(-bits * prod(shape) // 8))


def reads(node: onnx.NodeProto) -> list[str]:
    """Names of the values that a node reads, including outside values that its subgraphs read, each once."""
    names = [name for name in node.input if name]
    for body in _bodies(node):
        own = {value.name for value in (*body.input, *body.initializer)}
        for inner in body.node:
            names += [name for name in reads(inner) if name not in own]
            own.update(inner.output)
        names += [value.name for value in body.output if value.name not in own]
    return list(dict.fromkeys(names))


def _bodies(node: Any) -> list[Any]:
    """The direct subgraphs of a node."""
    return [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs)]


def _draws(node: Any) -> bool:
    """True if a node, or one inside it, draws random numbers."""
    return node.op_type in _RANDOM or any(_draws(inner) for body in _bodies(node) for inner in body.node)


def _add_contrib_shapes(model: Any) -> None:
    """Give outputs of com.microsoft nodes the fixed shapes that onnxruntime infers, if it is installed.

    A session is opened, but not run, on the graph with inputs in place of its weights.
    """
    made = {name for node in model.graph.node if node.domain == MICROSOFT for name in node.output if name}
    made -= specs_of(model.graph).keys()
    if not made or find_spec("onnxruntime") is None:
        return
    import onnxruntime

    light = deepcopy(model)
    graph, held = light.graph, list(light.graph.initializer)
    inputs = {value.name for value in graph.input}
    del graph.initializer[:]
    for tensor in held:
        if prod(tensor.dims) <= SHAPE_ELEMENTS and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, sorted(made)))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(light.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # it raises errors of several classes of its own
        return
    known = {value.name: value for value in model.graph.value_info}
    for value in session.get_outputs():
        # ``tensor(float16)`` → FLOAT16
        element = getattr(onnx.TensorProto, value.type.removeprefix("tensor(").removesuffix(")").upper(), None)
        if value.name in made and element is not None and all(isinstance(size, int) for size in value.shape):
            known[value.name] = onnx.helper.make_tensor_value_info(value.name, element, value.shape)
    values = list(known.values())
    del model.graph.value_info[:]
    model.graph.value_info.extend(values)
