"""An ONNX model as a dataflow graph: inputs, weights and nodes."""

from dataclasses import replace
from typing import Any

from dlplacer.core.errors import FileFormatError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.files.structure_hash import structure_sha256
from dlplacer.frontend.onnx.onnx_file import OnnxFile, data_inputs
from dlplacer.frontend.onnx.onnx_values import Values, reads, values_of
from dlplacer.frontend.onnx.onnx_work import WorkCounter, is_view

WEIGHT_PREFIX = "weight:"
_UNKNOWN = TensorSpec((), "float32", 0)


def onnx_graph(file: OnnxFile) -> OpGraph:
    """The inference graph of a model, without times.

    Every node is an op with the file's name for it. Values that do not depend on an input, such as initializers and
    what ConstantOfShape makes, are weights: an op of zero time for each one that other nodes read.
    """
    values = values_of(file)
    counter = WorkCounter(values.model)
    graph = values.model.graph
    ops = [_input(value.name, values) for value in data_inputs(file.model)]
    producer: dict[str, tuple[str, int]] = {op.id: (op.id, 0) for op in ops}
    taken = {op.id for op in ops}
    edges: list[Edge] = []
    for node in graph.node:
        if all(name in values.constant for name in node.output if name):
            continue
        for name in reads(node):
            if name in values.constant and name not in producer:
                weight = _weight(name, values, taken)
                ops.append(weight)
                taken.add(weight.id)
                producer[name] = (weight.id, 0)
        op = _node(node, values, counter, taken)
        ops.append(op)
        taken.add(op.id)
        for name in reads(node):
            source, output = producer[name]
            edges.append(Edge(source, op.id, _spec(values, name).bytes, output, tensor=name))
        producer.update({name: (op.id, place) for place, name in enumerate(node.output) if name})
    if not ops:
        raise FileFormatError(str(file.path), ["all its outputs are constant: there is nothing to plan"])
    result = OpGraph(
        tuple(ops),
        tuple(edges),
        name=graph.name or file.path.stem,
        source=f"read from {file.path.name}",
        capture={
            "entry": str(file.path),
            "mode": "infer",
            "onnx": {"sha256": file.sha256, "dims": dict(file.dims)},
            "args": [
                {"path": value.name, "shape": list(spec.shape), "dtype": spec.dtype}
                for value in data_inputs(file.model)
                for spec in [values.specs[value.name]]
            ],
        },
    )
    return replace(result, structure_sha256=structure_sha256(result))


def _input(name: str, values: Values) -> Op:
    spec = _spec(values, name)
    return Op(name, "input", 0.0, outputs=(spec,), output_bytes=spec.bytes, phase="forward")


def _weight(name: str, values: Values, taken: set[str]) -> Op:
    op_id, spec = _free_name(WEIGHT_PREFIX + name, taken), _spec(values, name)
    return Op(op_id, "parameter", 0.0, outputs=(spec,), weight_bytes=spec.bytes, phase="forward", attrs={"value": name})


def _node(node: Any, values: Values, counter: WorkCounter, taken: set[str]) -> Op:
    work = counter.work_of(node, values.specs)
    made = tuple(_spec(values, name) if name else _UNKNOWN for name in node.output)
    return Op(
        _free_name(node.name, taken),
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


def _spec(values: Values, name: str) -> TensorSpec:
    return values.specs.get(name, _UNKNOWN)


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    return name
