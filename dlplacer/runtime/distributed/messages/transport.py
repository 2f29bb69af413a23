"""Point-to-point messages over torch.distributed: gloo for tensors in the host's memory, NCCL for those on GPUs."""

from typing import Any

import torch
import torch.distributed as dist

from dlplacer.runtime.devices.base import HOST_DEVICE
from dlplacer.runtime.distributed.messages.wire_format import HEADER_LENGTH, WireFormat


class HostTransport:
    """Moves one message at a time through the host's memory, over gloo; called on the thread of a channel.

    Attributes
    ----------
    on_device
        Whether tensors travel from and to their own device, not the host's memory.
    ordered_pairs
        Whether messages of several channels between two processes may overtake each other: tags keep them apart.
    """

    on_device = False
    ordered_pairs = True
    _device = HOST_DEVICE

    def handed(self, value: Any) -> Any:
        """On the thread that made a tensor: what `send` takes."""
        return value

    def send(self, value: Any, peer: int, tag: int, known: WireFormat | None) -> WireFormat:
        """Send what `handed` gave; without a known format the format goes first."""
        wire = known
        if wire is None:
            wire = WireFormat.of(value)
            dist.send(wire.to_header().to(self._device), peer, tag=tag)
        if wire.elements:
            dist.send(wire.flat(value, self._device), peer, tag=tag)
        return wire

    def receive(self, peer: int, tag: int, known: WireFormat | None) -> tuple[Any, WireFormat]:
        """Receive into new memory what `taken` takes, and its format."""
        wire = known
        if wire is None:
            header = torch.empty(HEADER_LENGTH, dtype=torch.int64, device=self._device)
            dist.recv(header, peer, tag=tag)
            wire = WireFormat.of_header(header)
        flat = wire.empty(self._device)
        if wire.elements:
            dist.recv(flat, peer, tag=tag)
        return wire.shaped(flat), wire

    def taken(self, in_flight: Any) -> Any:
        """On the thread that reads a tensor: the tensor, safe to use by the ops that follow."""
        return in_flight


class NcclTransport(HostTransport):
    """From GPU to GPU, over NCCL: a stream per channel, ordered with the compute streams by events.

    NCCL knows no tags: both directions between two processes go through one channel in one order.
    """

    on_device = True
    ordered_pairs = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._torch: Any = torch.get_device_module(device)
        self._streams: dict[int, Any] = {}

    def handed(self, value: Any) -> Any:
        """The tensor and the event after which it is computed."""
        return value, self._torch.current_stream(self._device).record_event()

    def send(self, value: Any, peer: int, tag: int, known: WireFormat | None) -> WireFormat:
        """Enqueue the send behind what computes the tensor."""
        tensor, computed = value
        stream = self._stream(tag)
        with self._torch.stream(stream):
            stream.wait_event(computed)
            wire = super().send(tensor, peer, 0, known)
            if tensor is not None:
                tensor.record_stream(stream)
        return wire

    def receive(self, peer: int, tag: int, known: WireFormat | None) -> tuple[Any, WireFormat]:
        """Enqueue the receive; the result carries the event after which the tensor is there."""
        stream = self._stream(tag)
        with self._torch.stream(stream):
            tensor, wire = super().receive(peer, 0, known)
            return (tensor, stream.record_event()), wire

    def taken(self, in_flight: Any) -> Any:
        """The tensor; the current stream waits for it."""
        tensor, arrived = in_flight
        stream = self._torch.current_stream(self._device)
        stream.wait_event(arrived)
        if tensor is not None:
            tensor.record_stream(stream)
        return tensor

    def _stream(self, tag: int) -> Any:
        if tag not in self._streams:
            self._streams[tag] = self._torch.Stream(device=self._device)
        return self._streams[tag]
