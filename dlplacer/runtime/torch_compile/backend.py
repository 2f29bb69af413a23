"""``torch.compile(model, backend="dlplacer", options={...})``: every graph that Dynamo finds is planned and placed.

Forward and backward of a graph are planned on their own, since the autograd engine runs between them; a `dlplacer.Job`
with `dlplacer.apply` plans them together and is faster. A graph is profiled, planned and compiled at its first call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import entry_points
from threading import Lock
from typing import Any

import torch
from torch import fx, nn

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.files.load import load_topology
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.op_graph_of_fx import build
from dlplacer.frontend.torch.tracing.joint import Slot, Traced
from dlplacer.planning.place import place
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import default_names, open_devices
from dlplacer.runtime.executor.stateful_ops import Updater
from dlplacer.runtime.placed.variant import Variant, copy_on, layouts_of
from dlplacer.runtime.profile.machine_times import measured_topology, with_timed_issue
from dlplacer.runtime.profile.op_times import with_measured_times
from dlplacer.runtime.profile.own_steps import OwnStep
from dlplacer.runtime.profile.statistic import typical

_NAME = "dlplacer"
_MOST_CORES = 8
_PROFILED = 3
"""The fewest steps of which one may be disturbed without moving a median."""
_ASSUMED = Options(contention="none", memory="sum", step="joint")
_OPENED: dict[tuple[str, ...], list[RuntimeDevice]] = {}


@dataclass(frozen=True)
class CompileOptions:
    """The entries that ``options`` may have.

    Attributes
    ----------
    devices
        Names of devices, a list or as one text with commas; by default the CUDA devices, or else the cores.
    topology
        A topology, a file, or the name of one that ships: its devices correspond to `devices` in order. By default the
        links and the cost of issuing an op are timed.
    method
        The method that plans a graph: a key of `dlplacer.solvers.methods.METHODS`.
    time_limit_s
        Seconds to plan one graph.
    seed
        Of the solver.
    """

    devices: Sequence[str] | str | None = None
    topology: Any = None
    method: str = "ilp"
    time_limit_s: float = 5.0
    seed: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "CompileOptions":
        """The options that a user gave; InputError if one is not known; names those that are."""
        known = [entry.name for entry in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise InputError(f"torch.compile: option {unknown[0]!r} is not known; dlplacer has {', '.join(known)}")
        return cls(**options)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices."""
        if self.devices is None:
            return default_names(_MOST_CORES)
        return tuple(self.devices.split(",") if isinstance(self.devices, str) else self.devices)


def dlplacer(
    module: fx.GraphModule,
    inputs: Sequence[object],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A Dynamo backend: the module's graph, placed.

    Raises
    ------
    InputError
        If an option is not known or a mode is given.
    MismatchError
        If a shape of the graph is not fixed.
    """
    from torch._dynamo.backends.common import aot_autograd

    if mode is not None:
        raise InputError(f"torch.compile: mode {mode!r} means nothing to dlplacer; give options={{...}} instead")
    chosen = CompileOptions.of(options or {})
    sizes = (size for value in inputs for size in (value.shape if isinstance(value, torch.Tensor) else [value]))
    if any(isinstance(size, (torch.SymInt, torch.SymFloat)) for size in sizes):
        raise MismatchError(
            "torch.compile: a shape of this graph is not fixed, and a plan is for fixed shapes; use "
            "torch.compile(..., dynamic=False), which makes a plan for every shape"
        )

    def compiled(graph: fx.GraphModule, _: Sequence[object]) -> Callable[..., Any]:
        if chosen.names not in _OPENED:
            _OPENED[chosen.names] = open_devices(chosen.names)
        return _boxed(GraphRunner(graph, _OPENED[chosen.names], chosen))

    found: Callable[..., Any] = aot_autograd(fw_compiler=compiled, bw_compiler=compiled)(module, inputs)
    return found


def _boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that empties its list of inputs, as autograd wants, so that they do not outlive their last reader."""

    def boxed(inputs: list[object]) -> Any:
        given = tuple(inputs)
        inputs.clear()
        return run(*given)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


class GraphRunner:
    """Calls a graph of ATen ops, whose inputs and outputs are flat, on devices that all graphs share."""

    def __init__(self, module: fx.GraphModule, devices: Sequence[RuntimeDevice], options: CompileOptions) -> None:
        returned = module.graph.output_node().args[0]
        assert isinstance(returned, (tuple, list))
        placeholders = list(module.graph.find_nodes(op="placeholder"))
        inputs = {node.name: Slot("input", position=position) for position, node in enumerate(placeholders)}
        outputs = tuple(Slot("output", position=position) for position in range(len(returned)))
        ops, edges, executable = build(Traced(module, inputs, outputs, None), [*inputs], {}, False)
        self.captured = Captured(OpGraph(tuple(ops), tuple(edges), name="compiled"), executable)
        self._devices, self._options = devices, options
        self._layouts = layouts_of([node.meta.get("val") for node in placeholders])
        made = (entry.meta.get("val") if isinstance(entry, fx.Node) else None for entry in returned)
        self._outputs_on = [value.device if isinstance(value, torch.Tensor) else None for value in made]
        self._first = Lock()
        self._variant: Variant | None = None

    def __call__(self, *inputs: object) -> list[object]:
        """The outputs of the graph, each on the device where it was traced."""
        with self._first:
            if self._variant is None:
                plan = self._planned(inputs)
                named = self._named(plan.topology)
                self._variant = Variant(self.captured, plan.order, named, Updater(None), self._layouts)
        variant, there = self._variant, [*inputs]
        for code, device in variant.inputs:
            if isinstance(weight := there[code.position], nn.Parameter):
                there[code.position] = copy_on(device.torch_device, weight)
        # From torch's own generator, so that ``torch.manual_seed`` decides what random ops draw.
        seed = int(torch.randint(2**62, ())) if variant.is_random else 0
        state = variant.run(variant.bind({}, there, seed))
        return [
            value.to(home) if isinstance(value, torch.Tensor) and home is not None and value.device != home else value
            for value, home in zip(variant.outputs(state), self._outputs_on, strict=True)
        ]

    def _planned(self, inputs: Sequence[Any]) -> Plan:
        options, topology = self._options, self._options.topology
        if topology is None:
            topology = with_timed_issue(measured_topology(self._devices), self._devices)
        elif not isinstance(topology, Topology):
            topology = load_topology(topology)
        named = self._named(topology)
        first = {node.type: named[node.id] for node in reversed(topology.devices)}
        times = {kind: self._timed(inputs, device) for kind, device in first.items()}
        graph = with_measured_times(self.captured.graph, times)
        # Inputs are where the caller has them: only a device that holds them, or copies of them, has them for nothing.
        given = iter(inputs)
        ops = (replace(op, devices=_homes(next(given), named)) if op.kind == "input" else op for op in graph.ops)
        how: dict[str, Any] = {"method": options.method, "time_limit_s": options.time_limit_s, "seed": options.seed}
        return place(replace(graph, ops=tuple(ops)), topology, _ASSUMED, **how).plan

    def _named(self, topology: Topology) -> dict[str, RuntimeDevice]:
        if len(topology.devices) != len(self._devices):
            raise MismatchError(
                f"torch.compile: the topology has {len(topology.devices)} devices, but {len(self._devices)} are used; "
                "name one device for each"
            )
        return {node.id: device for node, device in zip(topology.devices, self._devices, strict=True)}

    def _timed(self, inputs: Sequence[object], device: RuntimeDevice) -> dict[str, float]:
        step = OwnStep(self.captured, {"all": [op.id for op in self.captured.graph.ops]}, "all", device, {}, inputs)
        step.recorded()
        return typical([step.recorded() for _ in range(_PROFILED)])


def _homes(value: Any, devices: Mapping[str, RuntimeDevice]) -> tuple[str, ...]:
    held = tuple(name for name, device in devices.items() if device.torch_device == value.device)
    return tuple(devices) if isinstance(value, nn.Parameter) else held or tuple(devices)


# Known to Dynamo, unless the installed package has announced it already.
if not entry_points(group="torch_dynamo_backends", name=_NAME):
    torch._dynamo.register_backend(dlplacer, name=_NAME)
