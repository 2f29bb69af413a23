"""Measured times of this machine that belong to no op: transfers and issue costs; calibration files."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.topology import Device as TopologyDevice
from dlplacer.core.topology import Link, Topology
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.machines.costs.calibration import (
    Calibration,
    CopyLine,
    calibration_of,
    merged,
    read_calibration,
    write_calibration,
)
from dlplacer.machines.costs.device_table import TURN, is_core
from dlplacer.machines.importers.measured_links import measured
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.open import KINDS, in_host_memory, kind_of, open_devices
from dlplacer.runtime.executor.stateful_ops import Updater
from dlplacer.runtime.placed.variant import Variant
from dlplacer.runtime.profile.op_times import OwnStep, settled

_SIDE, _LENGTH, _WARM_STEPS, _STEPS = 48, 200, 3, 15
"""The chain of short ops: side of its matrices, number of op pairs, untimed steps and timed steps."""


def issue_time_s(devices: Sequence[RuntimeDevice]) -> float:
    """Median seconds a Python process takes to issue a short op to the first device; 0 for cores."""
    if devices[0].streams is None:
        return 0.0
    chain = _short_chain()
    step = OwnStep(chain, {"here": [op.id for op in chain.graph.ops]}, "here", devices[0], {}, ())
    issued = []
    for _ in range(_WARM_STEPS + _STEPS):
        step.plain()
        issued.append(step.issued_s / (2 * _LENGTH))
    return float(median(issued[_WARM_STEPS:]))


def with_timed_issue(topology: Topology, opened: Sequence[RuntimeDevice]) -> Topology:
    """The topology with the cost of issuing an op: measured on GPUs, assumed for cores."""
    # Three digits: the cost varies by a tenth between runs.
    on_cores: dict[str, Any] = {"dispatch_s": TURN.value, "process": "host", "asynchronous": False}
    issue = {"dispatch_s": float(f"{issue_time_s(opened):.3g}")} if opened[0].streams else on_cores
    return replace(topology, devices=tuple(replace(device, **issue) for device in topology.devices))


def _short_chain() -> Captured:
    """A step of alternating products and tanh, in which each op reads the result of the previous one."""
    calls = [Instruction("x", torch.ops.aten.eye.default, (_SIDE,), {"device": HOST_DEVICE})]
    for number in range(_LENGTH):
        read = Value(calls[-1].result), Value("x")
        calls.append(Instruction(f"product {number}", torch.ops.aten.mm.default, read, {}))
        calls.append(Instruction(f"tanh {number}", torch.ops.aten.tanh.default, (Value(calls[-1].result),), {}))
    return _step_of(calls, 4 * _SIDE**2)


def _step_of(calls: Sequence[Instruction], size_bytes: int) -> Captured:
    """A step with one op per call; all results have the same size."""
    spec = TensorSpec((size_bytes // 4,), "float32", size_bytes)
    reads = {call.result: {value.name for value in call.args if isinstance(value, Value)} for call in calls}
    edges = (Edge(source, op, size_bytes, 0, source) for op, sources in reads.items() for source in sources)
    codes = {call.result: OpCode(call.result, "call", instructions=(call,)) for call in calls}
    graph = OpGraph(tuple(Op(op, "test", outputs=(spec,)) for op in codes), tuple(edges))
    return Captured(graph, Executable(codes, (), None, False))


_SMALL_BYTES, _LARGE_BYTES = 4, 2**24
_ROUND_TRIPS = 40
_NO_COPY_BYTES_PER_S = 1e15


def measured_topology(devices: Sequence[RuntimeDevice] | Mapping[str, RuntimeDevice]) -> Topology:
    """A topology with a newly measured link for each device pair; a mapping gives the devices other names."""
    named = devices if isinstance(devices, Mapping) else {device.name: device for device in devices}
    links = [_link(*pair) for pair in itertools.combinations(named.items(), 2)]
    nodes = tuple(TopologyDevice(name, device.type) for name, device in named.items())
    return Topology(nodes, (), tuple(links), name="measured", source="timed copies between the devices")


def with_timed_links(topology: Topology, on_copy: Callable[[str, str], None] = lambda source, target: None) -> Topology:
    """A detected topology of this machine with measured links and issue cost.

    A link takes latency and rate from a line through the times of copies, if the line fits them (see
    `dlplacer.machines.importers.measured_links.measured`). `on_copy` is called before a copy, with the link's two ends.
    """
    on_cores = is_core(topology.devices[0])
    kinds = [name for name, kind in KINDS.items() if kind.in_host_memory == on_cores]
    kind = next((name for name in kinds if KINDS[name].count()), kinds[0])
    names = [f"{kind}:{place}" for place in range(len(topology.devices))]
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(device)) for device in open_devices(names)]
        named = dict(zip(topology.device_index, opened, strict=True))

        def copy_s(source: str, target: str, size_bytes: int) -> float:
            on_copy(source, target)
            if target != "host":
                return _transfer_s(named[source], named[target], size_bytes)
            # A CPU core copies nothing: only the time of the call remains.
            device, length = named[source], max(1, size_bytes // 4)
            tensor = device.submit(lambda: torch.zeros(length, device=device.torch_device)).result()
            return max(1e-9, _marked_s(device, lambda: tensor.to(HOST_DEVICE, non_blocking=True)))

        return with_timed_issue(measured(topology, copy_s, shared_memory=in_host_memory(opened)), opened)


def _link(source: tuple[str, RuntimeDevice], target: tuple[str, RuntimeDevice]) -> Link:
    (name, first), (other, second) = source, target
    small_s, large_s = (_transfer_s(first, second, size) for size in (_SMALL_BYTES, _LARGE_BYTES))
    slope = (large_s - small_s) / (_LARGE_BYTES - _SMALL_BYTES)
    streams = first.streams
    shared = first.torch_device == second.torch_device and not (streams is not None and streams.copies_here)
    rate = _NO_COPY_BYTES_PER_S if shared or slope <= 0 else 1 / slope
    return Link(name, other, rate, small_s)


def _transfer_s(first: RuntimeDevice, second: RuntimeDevice, size_bytes: int) -> float:
    """Seconds to transfer a tensor between two devices: half a round trip in a program."""
    length = max(1, size_bytes // 4)
    calls = [
        Instruction("give", torch.ops.aten.zeros.default, ([length],), {"device": HOST_DEVICE}),
        Instruction("turn", _same, (Value("give"),), {}),
        Instruction("take", _same, (Value("turn"),), {}),
    ]
    trip = _step_of(calls, 4 * length)
    order, devices = {"here": ["give", "take"], "there": ["turn"]}, {"here": first, "there": second}
    variant = Variant(trip, order, devices, Updater(None), ())
    times = []
    for _ in range(_ROUND_TRIPS):
        give, take = variant.run(variant.bind({}, (), 0), record=True).timelines["here"].spans(first)
        times.append((take[1] - give[2]) / 2)
    return max(1e-9, settled(times))


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _marked_s(device: RuntimeDevice, action: Callable[[], object]) -> float:
    """Seconds of an action that a device's thread issues, between two marks in the device's own order of work."""

    def repeated() -> list[float]:
        device.synchronize()
        times = []
        for _ in range(_ROUND_TRIPS):
            begin = device.now()
            action()
            end = device.now()
            device.synchronize()
            times.append(device.elapsed_s(begin, end))
        return times

    return settled(device.submit(repeated).result())


def calibrate(
    path: Path, graph: OpGraph, times_s: Mapping[str, Mapping[str, float]], devices: Sequence[RuntimeDevice]
) -> Calibration:
    """Add a profile's times to a calibration file, which is created if missing; returns the file's content.

    The function also measures the issue cost of the devices, and copies between the first two. Raises InputError if
    the devices are of several types, or the file was measured on other hardware or versions.
    """
    types = {device.type for device in devices}
    if len(types) != 1:
        raise InputError(
            f"a calibration file is for one device type; {', '.join(sorted(types))} were given: use one file per type"
        )
    kind, here = devices[0].type, devices[0].torch_device
    versions = {"torch": str(torch.__version__), **kind_of(here).versions(here.index or 0)}
    found = calibration_of(graph, times_s[kind], kind, versions)
    found = found.model_copy(update={"dispatch_s": issue_time_s(devices) or None})
    if len(devices) > 1:
        (link,) = measured_topology(devices[:2]).links
        found = found.model_copy(update={"copy_line": CopyLine(link.latency_s, link.bytes_per_s)})
    if path.exists():
        found = merged(read_calibration(path), found)
    write_calibration(path, found)
    return found
