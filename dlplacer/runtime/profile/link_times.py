"""What handing tensors between devices takes: latency and rate of a link."""

import itertools
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import torch

from dlplacer.core.topology import Device as TopologyDevice
from dlplacer.core.topology import Link, Topology
from dlplacer.machines.costs.device_table import is_core
from dlplacer.machines.importers.measured_links import measured
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, streams_of
from dlplacer.runtime.devices.open import in_host_memory, open_devices
from dlplacer.runtime.profile.issue_time import with_timed_issue
from dlplacer.runtime.profile.statistic import settled

_SMALL_BYTES, _LARGE_BYTES = 4, 2**24
_ROUND_TRIPS = 40
_SIDE, _PRODUCTS = 256, 3
"""A product of matrices of this side, and how many: work that empties the caches nearest to the core, as ops do."""
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
    kind = "cpu" if is_core(topology.devices[0]) else "cuda"
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
    """Seconds from sending a tensor to having it on the other device."""
    return (_issued_s if first.worker is second.worker else _woken_s)(first, second, size_bytes)


def _woken_s(first: RuntimeDevice, second: RuntimeDevice, size_bytes: int) -> float:
    """Seconds until a thread that sleeps has a tensor on its device, while the thread that sent it goes on with ops.

    As in a step, where the thread that is woken finds cold caches, and the interpreter in use by the sender. A round
    trip in which nothing else happens is quicker by half.
    """
    all_in_flight: queue.SimpleQueue[tuple[SentTensor, int]] = queue.SimpleQueue()

    def send_all() -> None:
        tensor, matrix = (torch.zeros(size, device=first.torch_device) for size in (size_bytes // 4, (_SIDE, _SIDE)))
        for _ in range(_ROUND_TRIPS + 1):
            for _ in range(_PRODUCTS):
                torch.mm(matrix, matrix)
            first.synchronize()
            sent_ns = time.perf_counter_ns()
            all_in_flight.put((sent(first, tensor, second), sent_ns))

    def receive_all() -> list[float]:
        times = []
        for _ in range(_ROUND_TRIPS + 1):
            in_flight, sent_ns = all_in_flight.get()
            received(second, in_flight)
            second.synchronize()
            times.append(1e-9 * (time.perf_counter_ns() - sent_ns))
        return times

    answer = second.submit(receive_all)
    first.submit(send_all).result()
    return settled(answer.result()[:-1])


SentTensor = tuple[Any, torch.Event | None]
"""A tensor in flight, and the event of its arrival; None if it has arrived."""


def sent(device: RuntimeDevice, tensor: torch.Tensor, target: RuntimeDevice) -> SentTensor:
    """On a device's thread: start moving a tensor to another device outside any program, and go on."""
    streams = streams_of(device)
    if streams is None:
        return device.send(tensor, target), None
    computed = streams.record(COMPUTE_STREAM)
    if device.torch_device == target.torch_device and not streams.copies_here:
        return tensor, computed
    stream = f"copy to {target.name}"
    streams.wait(stream, computed)
    copied = streams.copy(tensor, target.torch_device, stream, streams_of(target))
    streams.hold(tensor, stream)
    return copied, streams.record(stream)


def received(device: RuntimeDevice, in_flight: SentTensor) -> Any:
    """On the other device's thread: the tensor, safe to use by the ops that follow."""
    tensor, arrived = in_flight
    streams = streams_of(device)
    if streams is None:
        if arrived is not None:
            arrived.synchronize()
        return device.receive(tensor)
    if arrived is not None:
        streams.wait(COMPUTE_STREAM, arrived)
    there = device.receive(tensor)
    if there is not None:
        streams.hold(there, COMPUTE_STREAM)
    return there


def _issued_s(first: RuntimeDevice, second: RuntimeDevice, size_bytes: int) -> float:
    """Half a round trip of a tensor between devices that one thread issues for."""
    tensor = first.submit(lambda: torch.zeros(size_bytes // 4, device=first.torch_device)).result()

    def trip() -> None:
        nonlocal tensor
        there = sent(first, tensor, second)
        second.activate()
        back = sent(second, received(second, there), first)
        first.activate()
        tensor = received(first, back)

    return _marked_s(first, trip) / 2


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
