"""A transfer between devices outside any program, to time links; streams are ordered as a program would."""

from typing import Any

import torch

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, streams_of

SentTensor = tuple[Any, torch.Event | None]
"""A tensor in flight, and the event of its arrival; None if it has arrived."""


def sent(device: RuntimeDevice, tensor: torch.Tensor, target: RuntimeDevice) -> SentTensor:
    """On a device's thread: start moving a tensor to another device, and go on."""
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


def as_input(tensor: torch.Tensor, device: RuntimeDevice) -> torch.Tensor:
    """On the caller's thread: a tensor on a device, for a program that begins afterwards."""
    streams = streams_of(device)
    if streams is None or tensor.device != HOST_DEVICE or device.torch_device == HOST_DEVICE:
        return tensor.to(device.torch_device)
    return streams.take_input(tensor, device.torch_device)


def brought(tensor: torch.Tensor, device: RuntimeDevice) -> torch.Tensor:
    """On the device's thread: a tensor that another process sent through the host, safe to use by what follows."""
    streams = streams_of(device)
    if streams is None or tensor.device != HOST_DEVICE:
        return tensor.to(device.torch_device)
    return streams.bring(tensor, device.torch_device)


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
