"""One tensor's way from device to device outside a program, to time links; streams are ordered as a program would."""

from dataclasses import dataclass
from typing import Any

from dlplacer.devices.base import Device
from dlplacer.devices.streams import COMPUTE_STREAM, streams_of


@dataclass(frozen=True, slots=True)
class Parcel:
    """A tensor on its way, and the event after which it is there; None if it is there already."""

    tensor: Any
    arrived: Any = None


def sent(device: Device, tensor: Any, target: Device) -> Parcel:
    """On a device's thread: start moving a tensor to another device, and go on."""
    streams = streams_of(device)
    if streams is None:
        return Parcel(device.send(tensor, target))
    computed = streams.record(COMPUTE_STREAM)
    if device.torch_device == target.torch_device and not streams.copies_here:
        return Parcel(tensor, computed)
    stream = f"copy to {target.name}"
    streams.wait(stream, computed)
    copied = streams.copy(tensor, target.torch_device, stream)
    streams.hold(tensor, stream)
    return Parcel(copied, streams.record(stream))


def received(device: Device, parcel: Parcel) -> Any:
    """On the other device's thread: the tensor, safe to use by the ops that follow."""
    streams = streams_of(device)
    if streams is None:
        if parcel.arrived is not None:
            parcel.arrived.synchronize()
        return device.receive(parcel.tensor)
    if parcel.arrived is not None:
        streams.wait(COMPUTE_STREAM, parcel.arrived)
    streams.hold(parcel.tensor, COMPUTE_STREAM)
    return parcel.tensor
