"""A step for one mode and one set of input shapes: captured, ordered, lowered, checked, and compiled for devices."""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import networkx as nx
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.executable import Executable, OpCode
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.kernels import laid_out
from dlplacer.frontend.torch.tracing.stand_in import autocast_types, is_empty
from dlplacer.frontend.torch.tracing.step_module import has_hooks
from dlplacer.problem.simulate import in_order
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cuda import as_input
from dlplacer.runtime.executor.backends import SegmentBackend, segment_backend
from dlplacer.runtime.executor.executor import Executor
from dlplacer.runtime.executor.run import RankLinks, StepInputs, StepState
from dlplacer.runtime.executor.stateful_ops import Updater
from dlplacer.runtime.program.checks import require_no_races
from dlplacer.runtime.program.program import Order, Program, lower, lower_stages, memory_spaces, with_streams


def named_like(expected: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given keyword arguments in the order of the expected ones; InputError unless the names are the same."""
    if wrong := sorted(expected.keys() ^ given.keys()):
        raise InputError(
            f"the step takes the keyword arguments {', '.join(expected) or '(none)'}; {wrong[0]!r} "
            + ("is missing: pass it" if wrong[0] in expected else "is not one of them: remove it")
        )
    return {name: given[name] for name in expected}


def require_no_own_hooks(placed: nn.Module) -> None:
    """Raise InputError if a placed module itself has hooks, which only run when the module is called."""
    if has_hooks(placed):
        raise InputError(
            "the placed module has hooks, which step() does not call: call the module and loss.backward() instead, or "
            "remove them (handle.remove())"
        )


def require_autocast(job: Job) -> None:
    """Raise MismatchError if torch.autocast is active with a dtype other than that of the capture."""
    for device_type in autocast_types():
        if torch.is_autocast_enabled(device_type):
            active = str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")
            if active != job.autocast:
                raise MismatchError(
                    f"torch.autocast is active with {active}, but the plan was captured with autocast "
                    f"{job.autocast or 'off'}; leave the context, or capture with Job(autocast={active!r})"
                )


def require_unscaled_updates(job: Job) -> None:
    """Raise InputError if the step updates parameters with float16 gradients, which need a GradScaler."""
    if job.autocast == "float16" and job.update is not None:
        raise InputError(
            "float16 gradients need a GradScaler, which an update inside the step lacks; capture without an "
            "optimizer and use scaler.scale(loss).backward() and scaler.step(optimizer), or autocast to bfloat16"
        )


def require_inputs(
    job: Job, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: tuple[Any, ...], differentiates: bool
) -> None:
    """Raise MismatchError unless inputs have the job's types and dtypes and, if `differentiates`, need no gradients."""
    named = {"kwargs": (dict(kwargs), dict(job.kwargs))} if kwargs else {}
    parts: dict[str, Any] = {"args": (args, job.args), **named, "targets": (targets, job.targets)}
    for part, both in parts.items():
        leaves, wanted = map(pytree.tree_leaves, both)
        if len(leaves) != len(wanted) and (part != "targets" or leaves):
            raise MismatchError(
                f"{part} holds {len(leaves)} values; the capture had {len(wanted)}: nest the inputs as in the capture"
            )
        for position, (leaf, captured) in enumerate(zip(leaves, wanted, strict=False)):
            _require_input(f"{part}[{position}]", leaf, captured, differentiates)


def require_data(name: str, tensor: torch.Tensor) -> None:
    """Raise InputError if a parameter or buffer has no data: it is on the meta device, or a stand-in."""
    if is_empty(tensor):
        raise InputError(f"{name!r} has no data: such a module can be planned but not run; build it with real memory")


def _require_input(name: str, leaf: Any, captured: Any, differentiates: bool) -> None:
    if isinstance(leaf, torch.Tensor) != isinstance(captured, torch.Tensor):
        raise MismatchError(f"input {name} is a {type(leaf).__name__}; the capture had {type(captured).__name__}")
    if not isinstance(leaf, torch.Tensor):
        return
    intercepts = type(leaf).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if is_empty(leaf) or leaf.layout != torch.strided or intercepts:
        what = f"a {type(leaf).__name__} on {leaf.device} with layout {leaf.layout}"
        raise MismatchError(f"input {name} is {what}; give a plain dense tensor with data")
    if leaf.dtype != captured.dtype:
        raise MismatchError(
            f"input {name} has dtype {leaf.dtype}; the plan was captured with {captured.dtype}: convert it, or capture "
            "and solve for that dtype"
        )
    if differentiates and leaf.requires_grad:
        raise MismatchError(f"input {name} requires a gradient; a placed step has them for parameters only: detach it")


def require_whole(name: str, tensor: torch.Tensor) -> None:
    """Raise MismatchError if a parameter or buffer was sharded after the plan was applied, for example by FSDP."""
    if hasattr(tensor, "full_tensor"):
        raise MismatchError(
            f"{name!r} is a piece of a tensor (DTensor) that was not gathered: a placed module calls no sub-module, "
            "so fully_shard on one never gathers it; wrap the placed module alone, fully_shard(placed), or use "
            "DistributedDataParallel(placed) or replicas"
        )


def require_home(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raise MismatchError if a parameter or buffer was moved or sharded after the plan was applied."""
    require_whole(name, tensor)
    if tensor.device != device:
        raise MismatchError(
            f"{name!r} is on {tensor.device}; the plan has it on {device}: fully_shard and .to() put all parameters on "
            "one device; apply the plan again, or use DistributedDataParallel(placed) or replicas"
        )


def require_unwritten(written: Iterable[str], tensors: Mapping[str, torch.Tensor], inputs: Sequence[Any]) -> None:
    """Raise InputError if an input shares memory with a tensor that the step writes: ops read inputs at any time."""
    owner = {tensors[name].untyped_storage().data_ptr(): name for name in written}
    for position, leaf in enumerate(inputs):
        if isinstance(leaf, torch.Tensor) and leaf.numel() and leaf.untyped_storage().data_ptr() in owner:
            raise InputError(
                f"input {position} of the step shares memory with {owner[leaf.untyped_storage().data_ptr()]!r}, which "
                "the step writes to; give it memory of its own (.clone())"
            )


_MARKS = ("parameter", "buffer", "mutation", "gradient", "update")
"""Kinds of ops that compute no part of a module."""


def order_like(plan: Plan, captured: OpGraph) -> Order:
    """An order for a graph that shares ops with the plan's graph: one of other shapes, an edited module, or inference.

    Ops of the plan keep their device and position. Other ops are placed like their neighbours (see `_homes`), right
    after the tensors that they read.
    """
    wiring = [{(edge.source, edge.target) for edge in graph.edges} for graph in (plan.graph, captured)]
    if plan.graph.index.keys() == captured.index.keys() and wiring[0] == wiring[1]:
        return plan.order
    turn = {entry.op: float(position) for position, entry in enumerate(in_order(plan))}
    for name in captured.topological_order:
        if name not in turn:
            turn[name] = max((turn[edge.source] for edge in captured.edges_into[name]), default=0.0)
    # A topological order of all ops, split by device, can never deadlock.
    dependencies = nx.DiGraph((edge.source, edge.target) for edge in captured.edges)
    dependencies.add_nodes_from(captured.index)
    home, order = _homes(plan, captured), {device.id: list[str]() for device in plan.topology.devices}
    for name in nx.lexicographical_topological_sort(dependencies, lambda op: (turn[op], captured.index[op])):
        order[home[name]].append(name)
    return order


def _homes(plan: Plan, captured: OpGraph) -> dict[str, str]:
    """Op of a graph → device, for a graph that shares ops with the plan's graph.

    An op takes the device of the first of these that has one: its colocation group; the plan's op with its id or made
    from it; the plan's first op of its phase and module; its first source; without sources, its first reader.
    """
    hints: dict[tuple[str | None, str | None], str] = {}
    for op in plan.graph.ops:
        if op.module and op.kind not in _MARKS:
            hints.setdefault((op.phase, op.module), plan.placement[op.id])
    made_from = {name: plan.placement[op.id] for op in plan.graph.ops for name in op.origin}
    home: dict[str, str] = {}
    of_group: dict[str | None, str] = {}

    def settle(op: Op, device: str) -> None:
        home[op.id] = device if op.devices is None or device in op.devices else op.devices[0]
        if op.colocate is not None:
            of_group.setdefault(op.colocate, home[op.id])

    for name in captured.topological_order:
        op = captured.op(name)
        sources = [edge.source for edge in captured.edges_into[name]]
        found = (
            of_group.get(op.colocate)
            or plan.placement.get(name)
            or made_from.get(name)
            or hints.get((op.phase, op.module))
            or next((home[source] for source in sources if source in home), None)
        )
        if found is None and not sources:
            continue  # until its reader has a device
        settle(op, found or plan.topology.devices[0].id)
        for source in sources:
            if source not in home:
                settle(captured.op(source), home[name])
    for op in captured.ops:
        if op.id not in home:
            settle(op, of_group.get(op.colocate) or plan.topology.devices[0].id)
    return home


Layouts = Sequence[tuple[int, ...] | None]
"""Strides of the flat inputs at capture; None for an input that is no tensor."""


@dataclass(frozen=True)
class Variant:
    """A captured step with the order of its ops on each device; the order has every op of the graph once.

    The graph of `captured` has all ops; its executable has only the code of ops that run on the `devices` of this
    process (`part_of`). `starts`: op → planned start in seconds; `segments`: the option of `dlplacer.apply`. Forward
    and backward as two programs never run as CUDA graphs, because they leave values for each other. `links`: program →
    its links to other processes; tensors sent there pass through the host's memory, unless `away_on_device`.
    """

    captured: Captured
    order: Order
    devices: Mapping[str, RuntimeDevice]
    updater: Updater
    layouts: Layouts
    segments: str = field(default="eager", kw_only=True)
    starts: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    links: Callable[[Program], RankLinks] | None = field(default=None, kw_only=True)
    away_on_device: bool = field(default=False, kw_only=True)

    @cached_property
    def home(self) -> Mapping[str, str]:
        """Op id → name of its device in the plan."""
        return {op: device for device, ops in self.order.items() for op in ops}

    def run(self, inputs: StepInputs, record: bool = False) -> StepState:
        """Run the whole step as one program, and return its final state."""
        state = self.joint.start(inputs, record)
        self.joint.run(state)
        return state

    @cached_property
    def joint(self) -> Executor:
        """The whole step as one program."""
        program = lower(self.captured.graph, self.order, self.captured.executable.returned)
        (program,) = self._for_devices([program])
        return self._executor(program, self.updater, segment_backend(self.segments))

    @cached_property
    def stages(self) -> tuple[Executor, ...]:
        """Forward and backward as two programs; the caller runs between them, and updates the parameters itself."""
        later = {op.id for op in self.captured.graph.ops if op.phase != "forward"}
        orders = [
            {device: [op for op in ops if (op in later) == is_later] for device, ops in self.order.items()}
            for is_later in (False, True)
        ]
        programs = self._for_devices(lower_stages(self.captured.graph, orders, self.captured.executable.returned))
        name = "eager" if segment_backend(self.segments).leaves_values else self.segments
        return tuple(self._executor(program, Updater(None), segment_backend(name)) for program in programs)

    @cached_property
    def is_random(self) -> bool:
        """True if an op draws random numbers."""
        return any(code.random for code in self.captured.executable.codes.values())

    def bind(self, tensors: Mapping[str, torch.Tensor], inputs: Sequence[Any], seed: int) -> StepInputs:
        """All tensors and inputs of a step, each on the device planned for its op. `tensors`: full name → the
        module's tensor; `inputs`: the step's flat inputs.
        """
        bound: dict[str, Any] = {}
        for (name, device), ops in self._tensor_ops.items():
            tensor = tensors[name]
            require_home(name, tensor, device)
            # detach shares storage and version counter: in-place updates reach the parameter and show in `versions`.
            bound |= dict.fromkeys(ops, tensor.detach())
        for code, target in self.inputs:
            tensor, strides = _plain(inputs[code.position]), self.layouts[code.position]
            # Views and kernels of the captured graph may depend on its memory layout.
            tensor = tensor if strides is None or 0 in strides else laid_out(tensor, strides)
            bound[code.op] = as_input(tensor, target)
        for code in self.captured.executable.of_role("constant"):
            bound[code.op] = copy_on(self._torch_device(code.op), code.constant)
        return StepInputs(bound, seed)

    def with_tangent(self, inputs: StepInputs, tangent: torch.Tensor | None) -> StepInputs:
        """The inputs, and with them the gradient of the loss (`tangent`); a `tangent` of None means 1."""
        bound = dict(inputs.bound)
        for code in self.captured.executable.of_role("tangent"):
            device, spec = self._torch_device(code.op), self.captured.graph.op(code.op).outputs[0]
            if tangent is None:
                bound[code.op] = torch.ones(spec.shape, dtype=getattr(torch, spec.dtype), device=device)
            else:
                bound[code.op] = tangent.to(device)
        return replace(inputs, bound=bound)

    def versions(self, inputs: StepInputs) -> dict[str, int]:
        """Name of each outside tensor that the backward program reads → its number of in-place changes."""
        return {code.name or code.op: _version(inputs.bound[code.op]) for code in self._read_twice}

    def outputs(self, state: StepState) -> list[Any]:
        """The step's returned values, in order."""
        executable = self.captured.executable
        return with_constants(
            executable, [state.values[self.home[executable.producer[name]]][name] for name in executable.outputs]
        )

    def gradients(self, state: StepState) -> dict[str, torch.Tensor]:
        """Parameter name → gradient, on the parameter's device."""
        sinks = self.captured.executable.of_role("gradient")
        return {code.name: state.values[self.home[code.op]][code.reads[0]] for code in sinks}

    @cached_property
    def written(self) -> tuple[str, ...]:
        """Names of the buffers and parameters that the step writes."""
        return tuple(code.name for code in self.captured.executable.of_role("mutation", "update"))

    @cached_property
    def inputs(self) -> Sequence[tuple[OpCode, RuntimeDevice]]:
        """The ops that take the step's inputs, and their devices."""
        return [(code, self.devices[self.home[code.op]]) for code in self.captured.executable.of_role("input")]

    @cached_property
    def _tensor_ops(self) -> Mapping[tuple[str, torch.device], Sequence[str]]:
        """(parameter or buffer, its device) → the ops that read it in or write it back."""
        found: dict[tuple[str, torch.device], list[str]] = {}
        for code in self.captured.executable.of_role("parameter", "buffer", "mutation"):
            found.setdefault((code.name, self._torch_device(code.op)), []).append(code.op)
        return found

    @cached_property
    def _read_twice(self) -> tuple[OpCode, ...]:
        graph, given = self.captured.graph, ("parameter", "buffer", "input", "constant")
        return tuple(
            code
            for code in self.captured.executable.of_role(*given)
            if any(graph.op(edge.target).phase == "backward" for edge in graph.edges_from[code.op])
        )

    def _for_devices(self, programs: Sequence[Program]) -> list[Program]:
        """The programs lowered for these devices, and checked for deadlocks and races."""
        graph, codes = self.captured.graph, self.captured.executable.codes
        spaces = memory_spaces(self.devices, self.order, self.away_on_device)
        made = {op: set(code.results) for op, code in codes.items()}
        empty = {edge.tensor for edge in graph.edges if edge.tensor not in made.get(edge.source, {edge.tensor})}
        lowered = with_streams(programs, spaces, empty)
        require_no_races(graph, lowered, spaces, empty)
        return lowered

    def _executor(self, program: Program, updater: Updater, backend: SegmentBackend) -> Executor:
        links = None if self.links is None else self.links(program)
        graph, executable = self.captured.graph, self.captured.executable
        return Executor(graph, executable, program, self.devices, updater, backend, links, self.starts)

    def _torch_device(self, op: str) -> torch.device:
        return self.devices[self.home[op]].torch_device


def part_of(captured: Captured, here: Collection[str]) -> Captured:
    """The captured step with the code of only some ops; it returns only outputs of these ops, and no constants."""
    whole = captured.executable
    codes = {op: code for op, code in whole.codes.items() if op in here}
    outputs = tuple(name for name in whole.outputs if whole.producer[name] in codes)
    return replace(captured, executable=replace(whole, codes=codes, outputs=outputs, constants={}))


def with_constants(executable: Executable, tensors: Sequence[Any]) -> list[Any]:
    """The values that a step returns: `tensors`, with the step's constants inserted at their positions."""
    found, constants = iter(tensors), executable.constants
    count = len(tensors) + len(constants)
    return [constants[position] if position in constants else next(found) for position in range(count)]


def layouts_of(inputs: Sequence[Any]) -> Layouts:
    """The layouts of flat inputs."""
    return tuple(tuple(leaf.stride()) if isinstance(leaf, torch.Tensor) else None for leaf in inputs)


_copies: MutableMapping[Any, dict[torch.device, tuple[int, torch.Tensor]]] = WeakIdKeyDictionary()


def copy_on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on a device; it is copied once, and again after each in-place change."""
    if tensor.device == device:
        return tensor
    kept, version = _copies.setdefault(tensor, {}), _version(tensor)
    if device not in kept or kept[device][0] != version:
        kept[device] = version, tensor.detach().to(device)
    return kept[device][1]


def _version(tensor: torch.Tensor) -> int:
    """The number of in-place changes of a tensor; 0 for tensors made in inference mode, which do not count them."""
    return 0 if tensor.is_inference() else tensor._version


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A plain `torch.Tensor` of the values, detached, with pending conjugation and negation done."""
    with torch._C.DisableTorchFunctionSubclass():
        found = tensor.detach().resolve_conj().resolve_neg()
        return found if type(found) is torch.Tensor else found.as_subclass(torch.Tensor)
