"""Times of this machine that belong to no op: handing a tensor to another device, and issuing an op."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.topology import Device as TopologyDevice
from dlplacer.core.topology import Link, Topology
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.machines.costs.device_table import TURN, is_core
from dlplacer.machines.importers.measured_links import measured
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.open import KINDS, in_host_memory, open_devices
from dlplacer.runtime.devices.streams import streams_of
from dlplacer.runtime.executor.stateful_ops import Updater
from dlplacer.runtime.placed.variant import Variant
from dlplacer.runtime.profile.own_steps import OwnStep, side_by_side
from dlplacer.runtime.profile.statistic import settled

_SIDE, _LENGTH = 48, 200
"""Side of the matrices of the chain of short ops, and how many pairs of ops it has: 4 us each on a core, alone."""
_WARM_STEPS, _STEPS = 3, 15
"""Now and then two threads get along for a step, in a quarter of the time: the median of 15 is not one of those."""


def issue_time_s(devices: Sequence[RuntimeDevice]) -> float:
    """Seconds in which a Python process issues an op to devices of one kind.

    A chain of short ops runs on cores at once, as plans run. They start ops one after another, so it is the time of the
    chain ÷ all ops; where they gain from running at once, it is at most that. 0 for one core. To devices with streams
    the process issues a chain for the first.
    """
    cores = in_host_memory(devices)
    if cores and len(devices) < 2:
        return 0.0
    job, captured = _short_chain()
    order, ops = {"here": [op.id for op in captured.graph.ops]}, 2 * _LENGTH
    used = devices if cores else devices[:1]
    steps = [OwnStep(captured, order, "here", each, job_tensors(job), flat_inputs(job)) for each in used]
    issued = []
    for _ in range(_WARM_STEPS + _STEPS):
        side_by_side(OwnStep.plain, steps)
        issued.append(max(step.issued_s for step in steps) / (len(steps) * ops))
    return float(median(issued[_WARM_STEPS:]))


def with_timed_issue(topology: Topology, opened: Sequence[RuntimeDevice]) -> Topology:
    """The machine of these devices, with the measured cost of issuing an op: cores are threads of one process."""
    # Three digits: it varies by a tenth from one run to the next.
    return _with_issue(topology, opened, float(f"{issue_time_s(opened):.3g}"), "timed with a chain of short ones")


def with_usual_issue(topology: Topology, opened: Sequence[RuntimeDevice]) -> Topology:
    """The machine of these devices, with the issue cost of cores of one process on the machine of the device table.

    The issue cost of other devices is left open.
    """
    return _with_issue(topology, opened, TURN.value if in_host_memory(opened) else 0.0, "of a generic host")


def _with_issue(topology: Topology, opened: Sequence[RuntimeDevice], issue_s: float, how: str) -> Topology:
    if not issue_s:
        return topology
    issue: dict[str, Any] = {"dispatch_s": issue_s}
    if in_host_memory(opened):
        issue |= {"process": "host", "asynchronous": False}
    devices = tuple(replace(device, **issue) for device in topology.devices)
    return replace(topology, devices=devices, source=f"{topology.source}; issue of an op {how}")


class _Chain(nn.Module):
    """Ops that each read the result of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(_SIDE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Products and tanh, alternating."""
        for _ in range(_LENGTH):
            x = torch.tanh(x @ self.weight)
        return x


def _short_chain() -> tuple[Job, Captured]:
    """Inference of a chain of short ops, and its capture."""
    job = Job(_Chain().eval(), args=(torch.zeros(_SIDE, _SIDE),), mode="infer")
    return job, capture_job(job, default_rewrites())


_SMALL_BYTES, _LARGE_BYTES = 4, 2**24
_ROUND_TRIPS = 40
_NO_COPY_BYTES_PER_S = 1e15


def measured_topology(devices: Sequence[RuntimeDevice] | Mapping[str, RuntimeDevice]) -> Topology:
    """The given devices, under their own or the given names, joined pair by pair by links that were just measured."""
    named = devices if isinstance(devices, Mapping) else {device.name: device for device in devices}
    links = [_link(*pair) for pair in itertools.combinations(named.items(), 2)]
    nodes = tuple(TopologyDevice(name, device.type) for name, device in named.items())
    return Topology(nodes, (), tuple(links), name="measured", source="timed copies between the devices")


def with_timed_links(topology: Topology, on_copy: Callable[[str, str], None] = lambda source, target: None) -> Topology:
    """A detected topology of this machine with measured links and issue cost.

    Latency and rate of every link are by timed copies, where these agree on them: see
    `dlplacer.machines.importers.measured_links.measured`. `on_copy` hears the ends of a link before a copy.
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
            if target == "host":
                return _to_host_s(named[source], size_bytes)
            return _transfer_s(named[source], named[target], size_bytes)

        return with_timed_issue(measured(topology, copy_s, shared_memory=in_host_memory(opened)), opened)


def _link(source: tuple[str, RuntimeDevice], target: tuple[str, RuntimeDevice]) -> Link:
    (name, first), (other, second) = source, target
    small_s, large_s = (_transfer_s(first, second, size) for size in (_SMALL_BYTES, _LARGE_BYTES))
    slope = (large_s - small_s) / (_LARGE_BYTES - _SMALL_BYTES)
    streams = streams_of(first)
    shared = first.torch_device == second.torch_device and not (streams is not None and streams.copies_here)
    rate = _NO_COPY_BYTES_PER_S if shared or slope <= 0 else 1 / slope
    return Link(name, other, rate, small_s)


def _transfer_s(first: RuntimeDevice, second: RuntimeDevice, size_bytes: int) -> float:
    """Seconds from having a tensor on one device to having it on the other: half a round trip in a program."""
    length = max(1, size_bytes // 4)
    spec = TensorSpec((length,), "float32", 4 * length)
    ops = [Op(name, "test", outputs=(spec,)) for name in ("give", "turn", "take")]
    edges = [Edge(one, other, spec.bytes, 0, one) for one, other in (("give", "turn"), ("turn", "take"))]
    calls = {
        "give": Instruction("give", torch.ops.aten.zeros.default, ([length],), {"device": HOST_DEVICE}),
        "turn": Instruction("turn", _same, (Value("give"),), {}),
        "take": Instruction("take", _same, (Value("turn"),), {}),
    }
    codes = {name: OpCode(name, "call", instructions=(call,)) for name, call in calls.items()}
    trip = Captured(OpGraph(tuple(ops), tuple(edges)), Executable(codes, (), None, False))
    order, devices = {"here": ["give", "take"], "there": ["turn"]}, {"here": first, "there": second}
    variant = Variant(trip, order, devices, Updater(None), ())
    times = []
    for _ in range(_ROUND_TRIPS):
        state = variant.joint.start(variant.bind({}, (), 0), record=True)
        variant.joint.run(state)
        assert state.timeline is not None
        give, take = state.timeline["here"].spans(first)
        times.append((take.start_s - give.end_s) / 2)
    return max(1e-9, settled(times))


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _to_host_s(device: RuntimeDevice, size_bytes: int) -> float:
    """Seconds of a copy to memory of the host; on a CPU core there is nothing to copy, and the call's time is left."""
    tensor = device.submit(lambda: torch.zeros(max(1, size_bytes // 4), device=device.torch_device)).result()
    return max(1e-9, _marked_s(device, lambda: tensor.to(HOST_DEVICE, non_blocking=True)))


def _marked_s(device: RuntimeDevice, action: Callable[[], object]) -> float:
    """Seconds of an action on a device's thread, between marks in the device's own order of work."""

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
