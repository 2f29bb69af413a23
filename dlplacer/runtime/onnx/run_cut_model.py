"""Cut a planned ONNX model into sub-models, and run them with onnxruntime on one thread per device."""

import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError, MismatchError, RunError, first_line
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import TensorSpec
from dlplacer.core.plan import Plan
from dlplacer.frontend.onnx.onnx_values import OnnxFile, data_inputs, reads, values_of
from dlplacer.machines.cores import usable_cores
from dlplacer.machines.costs.device_table import CORE
from dlplacer.runtime.devices.cpu import pin_thread
from dlplacer.runtime.profile.op_times import typical

_ENDING = "ExecutionProvider"
_CPU = "CPU" + _ENDING
_MEMORY = {
    "CUDA": "cuda",
    "Tensorrt": "cuda",
    "NvTensorRTRTX": "cuda",
    "ROCM": "cuda",
    "MIGraphX": "cuda",
    "Dml": "dml",
}
"""Provider → onnxruntime's name of the memory in which outputs can stay; for other providers, the host's memory."""


@dataclass(frozen=True)
class OnnxDevice:
    """A device for sessions: the `index`-th core of this process, or the `index`-th device of an execution provider.

    `provider`: the execution provider's name in onnxruntime; None for a core.
    """

    index: int = 0
    provider: str | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Name and number of the memory in which outputs stay."""
        memory = _MEMORY.get((self.provider or _CPU).removesuffix(_ENDING), "cpu")
        return memory, self.index if memory != "cpu" else 0

    @property
    def providers(self) -> list[Any]:
        """The ``providers`` of a session; the CPU runs nodes for which the device has no kernel."""
        if self.provider is None:
            return [_CPU]
        # The first device is every provider's default.
        option = {"device_type": f"GPU.{self.index}"} if "OpenVINO" in self.provider else {"device_id": str(self.index)}
        return [(self.provider, option if self.index else {}), _CPU]


@dataclass(frozen=True)
class OnDevice:
    """An ``OrtValue``, and the memory in which it lies."""

    value: Any
    place: tuple[str, int]


def provider_named(name: str) -> str:
    """The provider of this name; case and the ending ``ExecutionProvider`` do not matter.

    Raises InputError, naming the available providers, if this onnxruntime lacks the provider.
    """
    listed = [str(one) for one in _onnxruntime().get_available_providers()]
    wanted = name.lower().removesuffix(_ENDING.lower())
    found = next((one for one in listed if one.removesuffix(_ENDING).lower() == wanted), None)
    if found is None:
        known = ", ".join(one.removesuffix(_ENDING) for one in listed)
        raise InputError(f"this onnxruntime has no provider {name!r}; it has {known}: install the package for {name}")
    return found


def open_session(
    model: Any, profile_prefix: Path | None = None, optimized: bool = True, device: OnnxDevice | None = None
) -> Any:
    """A session that computes with one thread of the host, by default on a core.

    `profile_prefix`: prefix of the trace file that is written when profiling ends. Unless `optimized`, every node of
    the file runs separately. Raises InputError if onnxruntime is not installed, and RunError if it cannot run the
    model.
    """
    onnxruntime = _onnxruntime()
    options = onnxruntime.SessionOptions()
    # One core per device: by default each session starts a thread for every core.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimized:
        # Else the profile has no separate times for fused nodes, and its names differ from the file's.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    providers = (device or OnnxDevice()).providers
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    except Exception as error:
        raise RunError(f"onnxruntime cannot run the model: {first_line(error)}") from error


def run_session(session: Any, names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
    """The named outputs, by default all; RunError if onnxruntime fails, or an output cannot become an array."""
    try:
        return list(session.run(names, inputs))
    except Exception as error:
        raise RunError(f"onnxruntime cannot run the model: {first_line(error)}") from error


def run_bound(session: Any, names: Sequence[str], inputs: Mapping[str, Any], device: OnnxDevice) -> list[Any]:
    """The named outputs in the device's memory; for a core, as arrays.

    `inputs` are arrays, or outputs of another session.
    """
    if device.provider is None:
        return list(session.run(names, {name: as_array(value) for name, value in inputs.items()}))
    binding = session.io_binding()
    for name, value in inputs.items():
        if isinstance(value, OnDevice) and value.place == device.place:
            binding.bind_ortvalue_input(name, value.value)
        else:
            binding.bind_cpu_input(name, as_array(value))
    for name in names:
        binding.bind_output(name, *device.place)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return [OnDevice(value, device.place) for value in binding.get_outputs()]


def as_array(value: Any) -> Any:
    """The value as an array; from a device's memory it is copied to the host."""
    return value.value.numpy() if isinstance(value, OnDevice) else value


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("running ONNX models needs onnxruntime: pip install 'dlplacer[onnx]'") from error
    return onnxruntime


@dataclass(frozen=True)
class Part:
    """Names that define a sub-model: its device in the plan, nodes in the file's order, inputs and outputs.

    `inputs` come from the caller or other parts; the caller or other parts read `outputs`.
    """

    device: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def parts_of(file: OnnxFile, plan: Plan) -> tuple[Part, ...]:
    """The parts in a valid order of execution; each device's parts keep the planned order.

    A part is all ops of one device and one level. An op's level is the largest level among its sources and the
    previous op on its device, where a source on another device counts one more. So a part waits only for lower levels.

    Raises MismatchError unless the plan has the file's ops.
    """
    values = values_of(file)
    by_name = {node.name: node for node in file.model.graph.node}
    node_of = {op.id: str(op.attrs["node"]) for op in plan.graph.ops if "node" in op.attrs}
    wanted = {
        node.name for node in file.model.graph.node if not all(name in values.constant for name in node.output if name)
    }
    if set(node_of.values()) != wanted:
        odd = sorted(set(node_of.values()) ^ wanted)[0]
        raise MismatchError(f"the plan is of another model than {file.path}: they differ in node {odd!r}; solve again")
    levels = _levels(plan, node_of)
    grouped: dict[tuple[int, str], list[str]] = defaultdict(list)
    for entry in sorted(plan.ops, key=lambda entry: (entry.start_s, entry.end_s)):
        if entry.op in node_of:
            grouped[levels[entry.op], entry.device].append(node_of[entry.op])
    made_in = {name: key for key, nodes in grouped.items() for node in nodes for name in by_name[node].output if name}
    returned = {value.name for value in file.model.graph.output}
    read_by: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for key, nodes in grouped.items():
        for node in nodes:
            for name in reads(by_name[node]):
                read_by[name].add(key)
    given = {value.name for value in data_inputs(file.model)}
    order = {node.name: place for place, node in enumerate(file.model.graph.node)}
    parts: list[Part] = []
    constant = [name for name in returned if name in values.constant]
    for key in sorted(grouped):
        nodes = sorted(grouped[key], key=order.__getitem__)
        inputs = dict.fromkeys(
            name for node in nodes for name in reads(by_name[node]) if name in given or made_in.get(name, key) != key
        )
        outputs = [
            name
            for node in nodes
            for name in by_name[node].output
            if name and (name in returned or read_by[name] - {key})
        ]
        # A part without outputs is left out: a session must return something. The first part returns the constants.
        if outputs:
            parts.append(Part(key[1], tuple(nodes), tuple(inputs), (*outputs, *constant)))
            constant = []
    return tuple(parts)


def sub_model(file: OnnxFile, part: Part) -> onnx.ModelProto:
    """The ModelProto of a part, including the constants that it reads or returns."""
    by_name = {node.name: node for node in file.model.graph.node}
    nodes = [by_name[name] for name in part.nodes]
    graph = values_of(file).model.graph
    infos = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    constants, initializers = _constants(file, nodes, part.outputs)
    made = onnx.helper.make_graph(
        [*constants, *nodes],
        f"{file.model.graph.name or 'model'} on {part.device}",
        [infos[value] for value in part.inputs],
        [infos[value] for value in part.outputs],
        initializers,
    )
    # Initializers that are not inputs need IR version 4.
    version = max(4, file.model.ir_version)
    return onnx.helper.make_model(made, opset_imports=file.model.opset_import, ir_version=version)


def _levels(plan: Plan, node_of: Mapping[str, str]) -> dict[str, int]:
    """Op id → its level; see `parts_of`."""
    levels: dict[str, int] = {}
    reached: dict[str, int] = defaultdict(int)
    rank = {name: place for place, name in enumerate(plan.graph.topological_order)}
    for entry in sorted(plan.ops, key=lambda entry: (entry.start_s, rank[entry.op])):
        if entry.op not in node_of:
            continue
        level = reached[entry.device]
        for edge in plan.graph.edges_into[entry.op]:
            if edge.source in levels:
                level = max(level, levels[edge.source] + (plan.placement[edge.source] != entry.device))
        levels[entry.op] = reached[entry.device] = level
    return levels


def _constants(
    file: OnnxFile, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """The constant nodes (in the file's order) and the initializers that `nodes` and `outputs` need."""
    graph = file.model.graph
    maker = {name: node for node in graph.node for name in node.output if name}
    held = {tensor.name: tensor for tensor in graph.initializer}
    own = {name for node in nodes for name in node.output}
    constant = values_of(file).constant
    needed_nodes: dict[str, onnx.NodeProto] = {}
    needed: dict[str, onnx.TensorProto] = {}
    waiting = [*outputs, *(name for node in nodes for name in reads(node))]
    while waiting:
        name = waiting.pop()
        if name in own or name not in constant:
            continue
        if name in held:
            needed[name] = held[name]
        elif maker[name].name not in needed_nodes:
            needed_nodes[maker[name].name] = maker[name]
            waiting += reads(maker[name])
    return [node for node in graph.node if node.name in needed_nodes], list(needed.values())


Tensors = Mapping[str, NDArray[Any]]


class PlacedOnnx:
    """A model cut into parts; one thread per device, pinned for a core, runs the device's parts in the planned order.

    Between parts on one device of a provider, tensors stay in the device's memory.

    `devices`: device name in the plan → device of this machine; None takes cores in order. Raises MismatchError if the
    plan is for another file, and InputError if there are fewer cores than devices, or onnxruntime is not installed.
    """

    def __init__(self, file: OnnxFile, plan: Plan, devices: Mapping[str, OnnxDevice] | None = None) -> None:
        known = (plan.graph.capture or {}).get("onnx", {})
        if known.get("sha256") != file.sha256:
            raise MismatchError(f"the plan was made for other content of {file.path}; solve again")
        self.file, self.parts = file, parts_of(file, plan)
        used = list(dict.fromkeys(part.device for part in self.parts))
        chosen = {device: OnnxDevice(place) for place, device in enumerate(used)} if devices is None else devices
        self._devices = {name: chosen[name] for name in used}
        self._sessions = [open_session(sub_model(file, part), device=chosen[part.device]) for part in self.parts]
        cores = {name: _core(name, device) for name, device in self._devices.items() if device.provider is None}
        pinned: dict[str, Any] = {name: (pin_thread, (core,)) for name, core in cores.items()}
        self._pools = {name: ThreadPoolExecutor(1, f"onnx-{name}", *pinned.get(name, ())) for name in self._devices}

    def __call__(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """The model's outputs by name.

        Raises InputError if an input is missing, and RunError, naming device and first node, if a part fails.
        """
        wanted = [value.name for value in data_inputs(self.file.model)]
        missing = [name for name in wanted if name not in inputs]
        if missing:
            raise InputError(f"input {missing[0]!r} is missing; the model takes {', '.join(wanted)}")
        made = (name for part in self.parts for name in part.outputs)
        ready: dict[str, Future[Any]] = {name: Future() for name in (*wanted, *made)}
        for name in wanted:
            ready[name].set_result(inputs[name])
        done = [
            self._pools[part.device].submit(_run_part, part, session, self._devices[part.device], ready)
            for part, session in zip(self.parts, self._sessions, strict=True)
        ]
        for future in done:
            future.result()
        return {value.name: as_array(ready[value.name].result()) for value in self.file.model.graph.output}

    def close(self) -> None:
        """End the threads."""
        for pool in self._pools.values():
            pool.shutdown()


@dataclass(frozen=True)
class OnnxReport(Shown):
    """Median seconds per inference: `baseline_s` of the whole model on the first device, `measured_s` of the parts.

    `max_abs_error`: largest absolute difference between the outputs of the parts and of the whole model.
    """

    baseline_s: float
    measured_s: float
    predicted_s: float
    measured_speedup: float
    max_abs_error: float
    parts: int
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer run --json`` prints; a difference that is not finite becomes a string."""
        error = self.max_abs_error
        return {**asdict(self), "max_abs_error": error if math.isfinite(error) else str(error)}


def run_onnx(
    file: OnnxFile, plan: Plan, steps: int = 10, warmup: int = 3, devices: Mapping[str, OnnxDevice] | None = None
) -> OnnxReport:
    """Run a plan and the whole model alternately on random inputs, and compare outputs and times."""
    inputs = random_inputs(file)
    placed = PlacedOnnx(file, plan, devices)
    whole = open_session(file.model, device=next(iter((devices or {}).values()), None))
    try:
        outputs = run_session(whole, None, inputs)
        expected = dict(zip((value.name for value in whole.get_outputs()), outputs, strict=True))
        found = placed(inputs)
        # numpy's max, because Python's ignores NaN unless it comes first
        error = float(np.max([0.0, *(_difference(found[name], expected[name]) for name in found)]))
        times: dict[str, list[float]] = {"whole": [], "placed": []}
        for number in range(warmup + steps):
            for name, call in (("whole", lambda: whole.run(None, inputs)), ("placed", lambda: placed(inputs))):
                begin = time.perf_counter()
                call()
                if number >= warmup:
                    times[name].append(time.perf_counter() - begin)
    finally:
        placed.close()
    baseline_s, measured_s = median(times["whole"]), median(times["placed"])
    return OnnxReport(baseline_s, measured_s, plan.makespan_s, baseline_s / measured_s, error, len(placed.parts), steps)


def random_inputs(file: OnnxFile, seed: int = 0) -> dict[str, NDArray[Any]]:
    """An array for every input: normally distributed for floating-point types, zeros for others."""
    draw, specs = np.random.default_rng(seed), values_of(file).specs
    return {value.name: random_array(value.name, specs[value.name], draw) for value in data_inputs(file.model)}


def random_array(name: str, spec: TensorSpec, draw: np.random.Generator | None = None) -> NDArray[Any]:
    """The array of `random_inputs` for one input; InputError if it holds strings or does not fit into memory."""
    if spec.dtype == "string":
        raise InputError(f"input {name!r} holds strings; pass the inputs yourself")
    dtype = np.dtype(spec.dtype)
    try:
        if not np.issubdtype(dtype, np.floating):
            return np.zeros(spec.shape, dtype)
        return (draw or np.random.default_rng(0)).standard_normal(spec.shape).astype(dtype)
    except (MemoryError, ValueError) as error:
        text = f"input {name!r} of shape {list(spec.shape)} does not fit into memory; bind smaller axes"
        raise InputError(text) from error


def _core(name: str, device: OnnxDevice) -> int:
    """The system's number of a device's core; InputError if this process may not use that many."""
    usable = usable_cores()
    if device.index >= len(usable):
        raise InputError(
            f"device {name!r} needs core {device.index}; this process may use {len(usable)} cores: plan for fewer "
            "devices or give it more"
        )
    return usable[device.index]


def _run_part(part: Part, session: Any, device: OnnxDevice, ready: Mapping[str, "Future[Any]"]) -> None:
    try:
        inputs = {name: ready[name].result() for name in part.inputs}
        made = run_bound(session, part.outputs, inputs, device)
    except Exception as error:
        where = f"part of {len(part.nodes)} nodes on {part.device!r}, starting at {part.nodes[0]!r}"
        failed = error if isinstance(error, RunError) else RunError(f"{where}: {first_line(error)}")
        for name in part.outputs:
            ready[name].set_exception(failed)
        raise failed from error
    for name, value in zip(part.outputs, made, strict=True):
        ready[name].set_result(value)


def _difference(one: NDArray[Any], other: NDArray[Any]) -> float:
    if one.size == 0 or one.dtype.kind not in "fiub":
        return 0.0
    a, b = one.astype(np.float64), other.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.max(np.abs(np.subtract(a, b, out=np.zeros_like(a), where=~same))))


_KERNEL_TIME = "_kernel_time"


def profile_onnx(file: OnnxFile, graph: OpGraph, steps: int = 7, warmup: int = 2) -> dict[str, dict[str, float]]:
    """Device type → op id → seconds on one core, without fusion of nodes; see `typical`.

    A node without a kernel, which onnxruntime replaces by several nodes, is timed in its own session.

    Raises InputError if onnxruntime is not installed, and RunError if it cannot run the model.
    """
    count, inputs = warmup + steps, random_inputs(file)
    model: Any = onnx.ModelProto()
    model.CopyFrom(file.model)
    # Nodes that onnxruntime adds, and nodes of subgraphs, may share a name with others.
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
    """Node name → seconds of each of its runs, during `count` runs of the model."""
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(model, Path(folder) / "profile", optimized=False)
        for _ in range(count):
            run_session(session, None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    durations: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_KERNEL_TIME):
            durations[name.removesuffix(_KERNEL_TIME)].append(event["dur"] * 1e-6)
    return dict(durations)


def _replaced_times(file: OnnxFile, names: Sequence[str], count: int) -> dict[str, list[float]]:
    """Node → [step] → seconds of all nodes that replace it, on random inputs; equal nodes are timed once."""
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
    """[step] → seconds of a node, which may run several times per step."""
    runs = len(times) // count
    return [sum(times[number * runs : (number + 1) * runs]) for number in range(count)]
