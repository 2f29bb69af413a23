"""A transfer between devices outside any program, to time links; streams are ordered as a program would."""

from dataclasses import dataclass
from typing import Any

import torch

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, streams_of


@dataclass(frozen=True, slots=True)
class TensorInFlight:
    """A tensor in flight, and the event of its arrival; None if it has arrived."""

    tensor: Any
    arrived: torch.Event | None = None


def sent(device: RuntimeDevice, tensor: torch.Tensor, target: RuntimeDevice) -> TensorInFlight:
    """On a device's thread: start moving a tensor to another device, and go on."""
    streams = streams_of(device)
    if streams is None:
        return TensorInFlight(device.send(tensor, target))
    computed = streams.record(COMPUTE_STREAM)
    if device.torch_device == target.torch_device and not streams.copies_here:
        return TensorInFlight(tensor, computed)
    stream = f"copy to {target.name}"
    streams.wait(stream, computed)
    copied = streams.copy(tensor, target.torch_device, stream)
    streams.hold(tensor, stream)
    return TensorInFlight(copied, streams.record(stream))


def received(device: RuntimeDevice, in_flight: TensorInFlight) -> Any:
    """On the other device's thread: the tensor, safe to use by the ops that follow."""
    streams = streams_of(device)
    if streams is None:
        if in_flight.arrived is not None:
            in_flight.arrived.synchronize()
        return device.receive(in_flight.tensor)
    if in_flight.arrived is not None:
        streams.wait(COMPUTE_STREAM, in_flight.arrived)
    streams.hold(in_flight.tensor, COMPUTE_STREAM)
    return in_flight.tensor
