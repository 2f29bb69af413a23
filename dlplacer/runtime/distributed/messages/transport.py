"""Point-to-point messages over torch.distributed: gloo for tensors in the host's memory, NCCL for those on GPUs."""

from typing import Any

import torch
import torch.distributed as dist

from dlplacer.runtime.devices.base import HOST_DEVICE
from dlplacer.runtime.devices.device_streams import EventPool
from dlplacer.runtime.devices.stream_backend import StreamBackend
from dlplacer.runtime.distributed.messages.wire_format import HEADER_LENGTH, WireFormat


class HostTransport:
    """Moves one message at a time through the host's memory, over gloo; called on the thread of a channel.

    Attributes
    ----------
    memory
        From and to which tensors travel.
    on_device
        Whether that is a GPU's and not the host's.
    ordered_pairs
        Whether messages of several channels between two processes may overtake each other: tags keep them apart.
    """

    on_device = False
    ordered_pairs = True
    memory = HOST_DEVICE

    def handed(self, value: Any, device: torch.device) -> Any:  # noqa: ARG002
        """On the thread of the device that made a tensor: what `send` takes."""
        return value

    def send(self, value: Any, peer: int, tag: int, known: WireFormat | None) -> WireFormat:
        """Send what `handed` gave; without a known format the format goes first."""
        wire = known
        if wire is None:
            wire = WireFormat.of(value)
            dist.send(wire.to_header().to(self.memory), peer, tag=tag)
        if wire.elements:
            dist.send(wire.flat(value, self.memory), peer, tag=tag)
        return wire

    def receive(self, peer: int, tag: int, known: WireFormat | None) -> tuple[Any, WireFormat]:
        """Receive into new memory what `taken` takes, and its format."""
        wire = known
        if wire is None:
            header = torch.empty(HEADER_LENGTH, dtype=torch.int64, device=self.memory)
            dist.recv(header, peer, tag=tag)
            wire = WireFormat.of_header(header)
        flat = wire.empty(self.memory)
        if wire.elements:
            dist.recv(flat, peer, tag=tag)
        return wire.shaped(flat), wire

    def taken(self, in_flight: Any, device: torch.device) -> Any:  # noqa: ARG002
        """On the thread of the device that reads a tensor: the tensor, safe to use by the ops that follow."""
        return in_flight


class NcclTransport(HostTransport):
    """From GPU to GPU, over NCCL: a stream per channel, ordered with the compute streams by events.

    NCCL knows no tags: both directions between two processes go through one channel in one order. It also knows one GPU
    per process and peer: tensors of a process's other GPUs go through the one given here.
    """

    on_device = True
    ordered_pairs = False

    def __init__(self, device: torch.device, backend: StreamBackend | None = None) -> None:
        self.memory = device
        self._backend = StreamBackend(device.type) if backend is None else backend
        self._streams: dict[tuple[Any, int], torch.Stream] = {}
        self._events: dict[int, EventPool] = {}

    def handed(self, value: Any, device: torch.device) -> Any:
        """The tensor, the event after which it is computed, and the GPU of the event."""
        # On the stream of the GPU that made it: another one's, as the transport's own, says nothing about it.
        return value, self._recorded(self._backend.current(_index(device)), device), device

    def send(self, value: Any, peer: int, tag: int, known: WireFormat | None) -> WireFormat:
        """Enqueue the send behind what computes the tensor."""
        tensor, computed, maker = value
        stream = self._stream(tag, self.memory)
        away = tensor is not None and tensor.device != self.memory
        first = self._stream("to the transport", tensor.device) if away else stream
        first.wait_event(computed)
        self._pool(maker).give_back([computed])
        if away:
            tensor = self._moved(tensor, self.memory, first, stream)
        with self._backend.on(stream):
            wire = super().send(tensor, peer, 0, known)
            if tensor is not None:
                self._backend.protect(tensor, stream)
        return wire

    def receive(self, peer: int, tag: int, known: WireFormat | None) -> tuple[Any, WireFormat]:
        """Enqueue the receive; the result carries the event after which the tensor is there."""
        stream = self._stream(tag, self.memory)
        with self._backend.on(stream):
            tensor, wire = super().receive(peer, 0, known)
            return (tensor, self._recorded(stream, self.memory)), wire

    def taken(self, in_flight: Any, device: torch.device) -> Any:
        """The tensor on the reader's GPU; the current stream there waits for it."""
        tensor, arrived = in_flight
        current = self._backend.current(_index(device))
        if tensor is not None and tensor.device != device:
            aside, here = self._stream(("from the transport", device), self.memory), self._stream("arrivals", device)
            aside.wait_event(arrived)
            tensor = self._moved(tensor, device, aside, here)
            moved = self._recorded(here, device)
            current.wait_event(moved)
            self._pool(device).give_back([moved])
        else:
            current.wait_event(arrived)
        self._pool(self.memory).give_back([arrived])
        if tensor is not None:
            self._backend.protect(tensor, current)
        return tensor

    def _moved(
        self, tensor: torch.Tensor, device: torch.device, stream: torch.Stream, arrival: torch.Stream
    ) -> torch.Tensor:
        """The tensor on another GPU of this process: copied on one of its own streams, there for another one there."""
        copied = self._backend.copy(tensor, device, stream, arrival)
        done = self._recorded(stream, tensor.device)
        arrival.wait_event(done)
        self._pool(tensor.device).give_back([done])
        self._backend.protect(tensor, stream)
        return copied

    def _recorded(self, stream: torch.Stream, device: torch.device) -> torch.Event:
        return self._pool(device).recorded(stream)

    def _pool(self, device: torch.device) -> EventPool:
        return self._events.setdefault(_index(device), EventPool(self._backend))

    def _stream(self, name: Any, device: torch.device) -> torch.Stream:
        key = name, _index(device)
        if key not in self._streams:
            self._streams[key] = self._backend.stream(_index(device))
        return self._streams[key]


def _index(device: torch.device) -> int:
    return device.index or 0
