"""Seconds per node of an ONNX model, as onnxruntime reports them."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from dlplacer.core.graph import OpGraph
from dlplacer.frontend.onnx.onnx_file import OnnxFile
from dlplacer.frontend.onnx.onnx_values import reads, values_of
from dlplacer.machines.costs.device_table import CORE
from dlplacer.runtime.onnx.run_cut_model import (
    Part,
    Tensors,
    open_session,
    random_array,
    random_inputs,
    run_session,
    sub_model,
)
from dlplacer.runtime.profile.statistic import typical

_ENDING = "_kernel_time"


def profile_onnx(file: OnnxFile, graph: OpGraph, steps: int = 7, warmup: int = 2) -> dict[str, dict[str, float]]:
    """Device type → op id → seconds on one core, every node run by itself; see `typical`.

    A node that onnxruntime replaces by several, as it has no kernel for it, is timed in a session of its own.

    Raises InputError if onnxruntime is not installed, and RunError if it cannot run the model.
    """
    count, inputs = warmup + steps, random_inputs(file)
    model: Any = onnx.ModelProto()
    model.CopyFrom(file.model)
    # Nodes that onnxruntime makes, and those of subgraphs, may have the names of others.
    marks = {node.name: f"{node.name} (node {number})" for number, node in enumerate(model.graph.node)}
    for node in model.graph.node:
        node.name = marks[node.name]
    found = _kernel_times(model, inputs, count)
    wanted = [str(op.attrs["node"]) for op in graph.ops if "node" in op.attrs]
    times = {name: _per_step(found[marks[name]], count) for name in wanted if marks[name] in found}
    times |= _replaced_times(file, [name for name in wanted if name not in times], count)
    none = [0.0] * count
    by_op = {op.id: times.get(str(op.attrs.get("node", "")), none) for op in graph.ops}
    samples = [{op: seconds[number] for op, seconds in by_op.items()} for number in range(warmup, count)]
    return {CORE: typical(samples)}


def _kernel_times(model: onnx.ModelProto, inputs: Tensors, count: int) -> dict[str, list[float]]:
    """Name of a node that ran → seconds of each of its runs, in the given number of runs of the model."""
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(model, Path(folder) / "profile", optimized=False)
        for _ in range(count):
            run_session(session, None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    durations: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_ENDING):
            durations[name.removesuffix(_ENDING)].append(event["dur"] * 1e-6)
    return dict(durations)


def _replaced_times(file: OnnxFile, names: Sequence[str], count: int) -> dict[str, list[float]]:
    """Node → [step] → seconds of all nodes that it is replaced by, on random inputs; equal nodes are timed once."""
    values = values_of(file)
    of_kind: dict[object, list[float]] = {}
    times = {}
    nodes: list[Any] = [node for node in file.model.graph.node if node.name in names]
    for node in nodes:
        attributes = tuple(sorted(entry.SerializeToString(deterministic=True) for entry in node.attribute))
        kind = node.domain, node.op_type, attributes, tuple(map(values.specs.get, node.input))
        if kind not in of_kind:
            inputs = tuple(name for name in reads(node) if name not in values.constant)
            made = tuple(name for name in node.output if name in values.specs)
            given = {name: random_array(name, values.specs[name]) for name in inputs}
            runs = _kernel_times(sub_model(file, Part("one core", (node.name,), inputs, made)), given, count).values()
            of_kind[kind] = [sum(step) for step in zip(*(_per_step(each, count) for each in runs), strict=True)]
        times[node.name] = of_kind[kind] or [0.0] * count
    return times


def _per_step(times: list[float], count: int) -> list[float]:
    """[step] → seconds of a node that may run several times in a step."""
    runs = len(times) // count
    return [sum(times[number * runs : (number + 1) * runs]) for number in range(count)]
