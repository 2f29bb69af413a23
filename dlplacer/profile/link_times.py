"""Latency and rate of handing tensors between devices: an α-β fit over timed round trips."""

import itertools
import queue
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from dlplacer.devices.base import Device
from dlplacer.devices.streams import streams_of
from dlplacer.devices.transfer import received, sent
from dlplacer.topology import Device as TopologyDevice
from dlplacer.topology import Link, Topology

_SIZES_BYTES = (4, 2**20, 2**24)
_ROUND_TRIPS = 40
_NO_COPY_BYTES_PER_S = 1e15


def measured_topology(devices: Sequence[Device]) -> Topology:
    """The given devices, joined pair by pair by links whose latency and rate were just measured."""
    links = [_link(*pair) for pair in itertools.combinations(devices, 2)]
    nodes = tuple(TopologyDevice(device.name, device.type) for device in devices)
    return Topology(nodes, (), tuple(links), name="measured", source="timed round trips between the devices' threads")


def copy_timer(devices: Mapping[str, Device]) -> Callable[[str, str, int], float]:
    """(device, device or ``host``, bytes) → seconds of one copy, the median of repeated ones.

    Between devices it is half a round trip from thread to thread; to the host it is the copy of a CUDA device.
    """

    def time_s(first: str, second: str, size_bytes: int) -> float:
        if second != "host":
            return _one_way_s(devices[first], devices[second], size_bytes)
        return _to_host_s(devices[first], size_bytes)

    return time_s


def _to_host_s(device: Device, size_bytes: int) -> float:
    """Seconds of a copy to memory of the host; on a CPU core there is nothing to copy, and the call's time is left."""

    def copies() -> list[float]:
        tensor = torch.zeros(max(1, size_bytes // 4), device=device.torch_device)
        times = []
        for _ in range(_ROUND_TRIPS):
            device.synchronize()
            begin = device.now()
            tensor.to("cpu", non_blocking=True)
            end = device.now()
            device.synchronize()
            times.append(device.elapsed_s(begin, end))
        return times

    return max(1e-9, float(median(device.submit(copies).result()[_ROUND_TRIPS // 4 :])))


def _link(first: Device, second: Device) -> Link:
    times = {size: _one_way_s(first, second, size) for size in _SIZES_BYTES}
    small, large = _SIZES_BYTES[0], _SIZES_BYTES[-1]
    slope = (times[large] - times[small]) / (large - small)
    streams = streams_of(first)
    shared = first.torch_device == second.torch_device and not (streams is not None and streams.copies_here)
    rate = _NO_COPY_BYTES_PER_S if shared or slope <= 0 else 1 / slope
    return Link(first.name, second.name, rate, times[small])


def _one_way_s(first: Device, second: Device, size_bytes: int) -> float:
    """Half the median round trip of a tensor, thread to thread."""
    there: queue.SimpleQueue[Any] = queue.SimpleQueue()
    back: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ping() -> list[float]:
        tensor = torch.zeros(size_bytes // 4, device=first.torch_device)
        times = []
        for _ in range(_ROUND_TRIPS):
            begin = first.now()
            there.put(sent(first, tensor, second))
            tensor = received(first, back.get())
            end = first.now()
            first.synchronize()
            times.append(first.elapsed_s(begin, end))
        return times

    def pong() -> None:
        for _ in range(_ROUND_TRIPS):
            back.put(sent(second, received(second, there.get()), first))

    answer = second.submit(pong)
    times = first.submit(ping).result()
    answer.result()
    return float(median(times[_ROUND_TRIPS // 4 :])) / 2
