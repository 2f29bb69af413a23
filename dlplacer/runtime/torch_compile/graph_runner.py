"""One traced graph, profiled and planned at its first call, and then run as planned."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from torch import fx, nn
from torch.utils.weak import WeakIdKeyDictionary

from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.op_graph_of_fx import build
from dlplacer.frontend.torch.tracing.joint import Slot, Traced
from dlplacer.planning.place import place
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.placed.variant import Variant, layouts_of
from dlplacer.runtime.profile.issue_time import with_usual_issue
from dlplacer.runtime.profile.link_times import measured_topology
from dlplacer.runtime.profile.op_times import with_measured_times
from dlplacer.runtime.profile.own_steps import OwnStep
from dlplacer.runtime.profile.statistic import typical

_PROFILED = 3
"""The fewest steps of which one may be disturbed without moving a median."""
_ASSUMED = Options(contention="none", memory="sum", step="joint")


class GraphRunner:
    """Calls a graph of ATen ops, whose inputs and outputs are flat, on devices.

    `planning`: keyword arguments of `dlplacer.planning.place.place`, and ``topology``: None means the devices
    themselves, with links that are timed, and the usual issue cost of cores: to time that, a step would have to be
    captured, which cannot be done while Dynamo compiles another.
    """

    def __init__(self, module: fx.GraphModule, devices: Sequence[RuntimeDevice], planning: Mapping[str, Any]) -> None:
        self.captured = captured_graph(module)
        self._devices = devices
        self._planning = dict(planning)
        self._layouts = layouts_of([_stand_in(node) for node in _placeholders(module)])
        self._outputs_on = [_device_of(entry) for entry in _returned(module)]
        self._first = Lock()
        self._variant: Variant | None = None
        self.plan: Plan | None = None

    def __call__(self, *inputs: object) -> list[object]:
        """The outputs of the graph, each on the device where it was traced."""
        with self._first:
            if self._variant is None:
                self.plan = self._planned(inputs)
                self._variant = self._prepared(self.plan.order, self._named(self.plan.topology))
        outputs = self._run(self._variant, inputs)
        return [
            value.to(home) if isinstance(value, torch.Tensor) and home is not None and value.device != home else value
            for value, home in zip(outputs, self._outputs_on, strict=True)
        ]

    def _run(self, variant: Variant, inputs: Sequence[object]) -> list[object]:
        there = [*inputs]
        for code, device in variant.inputs:
            there[code.position] = weight_on(device.torch_device, there[code.position])
        state = variant.joint.start(variant.bind({}, there, self._drawn_seed(), 0))
        variant.joint.run(state)
        return variant.outputs(state)

    def _drawn_seed(self) -> int:
        """A number from torch's own generator, so that ``torch.manual_seed`` decides what random ops draw."""
        if not any(code.random for code in self.captured.executable.codes.values()):
            return 0
        return int(torch.randint(2**62, ()))

    def _planned(self, inputs: Sequence[object]) -> Plan:
        options = dict(self._planning)
        topology = options.pop("topology") or with_usual_issue(measured_topology(self._devices), self._devices)
        graph = with_measured_times(self.captured.graph, self._op_times(inputs, topology))
        return place(_near_inputs(graph, inputs, self._named(topology)), topology, _ASSUMED, **options).plan

    def _named(self, topology: Topology) -> dict[str, RuntimeDevice]:
        if len(topology.devices) != len(self._devices):
            raise MismatchError(
                f"torch.compile: the topology has {len(topology.devices)} devices, but {len(self._devices)} are used; "
                "name one device for each"
            )
        return {node.id: device for node, device in zip(topology.devices, self._devices, strict=True)}

    def _op_times(self, inputs: Sequence[object], topology: Topology) -> dict[str, dict[str, float]]:
        """Type in the topology → op → seconds, on the first device of each type."""
        first: dict[str, RuntimeDevice] = {}
        for node in topology.devices:
            first.setdefault(node.type, self._named(topology)[node.id])
        return {kind: self._timed(inputs, device) for kind, device in first.items()}

    def _timed(self, inputs: Sequence[object], device: RuntimeDevice) -> dict[str, float]:
        step = OwnStep(self.captured, {"all": [op.id for op in self.captured.graph.ops]}, "all", device, {}, inputs)
        step.recorded()
        return typical([step.recorded() for _ in range(_PROFILED)])

    def _prepared(self, order: Mapping[str, Sequence[str]], devices: Mapping[str, RuntimeDevice]) -> Variant:
        return Variant(self.captured, order, devices, Updater(None), self._layouts)


_copies: MutableMapping[Any, dict[torch.device, tuple[int, torch.Tensor]]] = WeakIdKeyDictionary()


def weight_on(device: torch.device, value: object) -> object:
    """A parameter on a device, copied again only after it was written to; any other value as it is."""
    if not isinstance(value, nn.Parameter) or value.device == device:
        return value
    kept = _copies.setdefault(value, {})
    if device not in kept or kept[device][0] != value._version:
        kept[device] = value._version, value.detach().to(device)
    return kept[device][1]


def captured_graph(module: fx.GraphModule) -> Captured:
    """Ops, edges and code of a graph whose inputs and outputs are flat.

    Raises CaptureError if it has an op that cannot be placed.
    """
    names = [node.name for node in _placeholders(module)]
    inputs = {name: Slot("input", position=position) for position, name in enumerate(names)}
    outputs = tuple(Slot("output", position=position) for position in range(len(_returned(module))))
    ops, edges, executable = build(Traced(module, inputs, outputs, None), names, {}, False)
    return Captured(OpGraph(tuple(ops), tuple(edges), name="compiled"), executable)


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def _returned(module: fx.GraphModule) -> Sequence[object]:
    returned = module.graph.output_node().args[0]
    assert isinstance(returned, (tuple, list))
    return returned


def _stand_in(node: fx.Node) -> Any:
    return node.meta.get("val")


def _device_of(entry: object) -> torch.device | None:
    value = _stand_in(entry) if isinstance(entry, fx.Node) else None
    return value.device if isinstance(value, torch.Tensor) else None


def _near_inputs(graph: OpGraph, inputs: Sequence[object], devices: Mapping[str, RuntimeDevice]) -> OpGraph:
    """Inputs are where the caller has them: only a device that holds them, or copies of them, has them for nothing."""
    given = iter(inputs)
    ops = (replace(op, devices=_homes(next(given), devices)) if op.kind == "input" else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def _homes(value: Any, devices: Mapping[str, RuntimeDevice]) -> tuple[str, ...]:
    held = tuple(name for name, device in devices.items() if device.torch_device == value.device)
    return tuple(devices) if isinstance(value, nn.Parameter) else held or tuple(devices)
