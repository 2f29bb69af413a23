"""A transfer between devices outside any program, to time links; streams are ordered as a program would."""

from typing import Any

import torch

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, streams_of

TensorInFlight = tuple[Any, torch.Event | None]
"""A tensor in flight, and the event of its arrival; None if it has arrived."""


def sent(device: RuntimeDevice, tensor: torch.Tensor, target: RuntimeDevice) -> TensorInFlight:
    """On a device's thread: start moving a tensor to another device, and go on."""
    streams = streams_of(device)
    if streams is None:
        return device.send(tensor, target), None
    computed = streams.record(COMPUTE_STREAM)
    if device.torch_device == target.torch_device and not streams.copies_here:
        return tensor, computed
    stream = f"copy to {target.name}"
    streams.wait(stream, computed)
    copied = streams.copy(tensor, target.torch_device, stream)
    streams.hold(tensor, stream)
    return copied, streams.record(stream)


def received(device: RuntimeDevice, in_flight: TensorInFlight) -> Any:
    """On the other device's thread: the tensor, safe to use by the ops that follow."""
    tensor, arrived = in_flight
    streams = streams_of(device)
    if streams is None:
        if arrived is not None:
            arrived.synchronize()
        return device.receive(tensor)
    if arrived is not None:
        streams.wait(COMPUTE_STREAM, arrived)
    streams.hold(tensor, COMPUTE_STREAM)
    return tensor
