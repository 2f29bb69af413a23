"""The streams of a device by name, the events on them, and the adapter to torch.cuda."""

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice

capturing = threading.Lock()
"""Held during a capture: torch allows one at a time in a process, and no other thread may touch its stream then."""


class StreamBackend:
    """The streams of a type of device, by the functions of its torch module: ``torch.cuda``, or one like it.

    `module`: a stand-in for torch's own.
    """

    def __init__(self, torch_type: str, module: Any = None) -> None:
        self.torch: Any = torch.get_device_module(torch_type) if module is None else module

    def device_count(self) -> int:
        """Number of devices of the type."""
        return int(self.torch.device_count()) if self.torch.is_available() else 0

    def copy(
        self, tensor: torch.Tensor, device: torch.device, stream: torch.Stream, arrival: torch.Stream | None = None
    ) -> torch.Tensor:
        """Enqueue a copy to a device, be it the tensor's own.

        `arrival`: stream of another GPU from whose memory the copy is allocated.
        """
        # Plain `.to()` would enqueue on the current streams of both devices: one late copy would stall all that is
        # queued behind it. At the other end torch orders the copy before and behind the current stream, here `arrival`.
        with ExitStack() as current:
            if arrival is not None:
                current.enter_context(self.torch.stream(arrival))
            current.enter_context(self.torch.stream(stream))
            if device.type == "cpu":
                # Without blocking, torch takes the target from its pool of pinned memory.
                return tensor.to(device, non_blocking=True, copy=True)
            return torch.empty_like(tensor, device=device).copy_(tensor, non_blocking=True)

    def upload(self, tensor: torch.Tensor, device: torch.device, stream: torch.Stream) -> torch.Tensor:
        """Enqueue a copy from the host's memory to a device; unpinned memory is staged, and may change at once."""
        with self.torch.stream(stream):
            # A copy from pageable memory makes the host wait. Torch's pool of pinned memory gives a buffer away again
            # only after the copies that read it.
            source = tensor if tensor.is_pinned() else self.pinned(tensor)
            return torch.empty_like(tensor, device=device).copy_(source, non_blocking=True)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the host in pinned memory."""
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def protect(self, tensor: torch.Tensor, stream: torch.Stream) -> None:
        """Keep the memory of a tensor, once it is freed, until the stream has finished the work queued by then."""
        # The caching allocator knows nothing of kernels that other streams than the allocating one still have to run.
        tensor.record_stream(stream)


COMPUTE_STREAM = "compute"
"""Name of the stream on which a device computes."""

COPY_STREAMS, ARRIVAL_STREAMS = 3, 2
"""Streams of a device for copies to others, and from others. With those for what is computed, for what the host sends,
and the caller's own they are 8: GPUs have 8 hardware queues by default, and streams that share one block each other."""

_FROM_HOST = "from host"


class Streams:
    """The streams of a device, called on the device's thread; they are made when they are first named.

    From any thread: `upload`, `caller_event`, `caller_waits`, `take_input` and `finish_reading`. If it `copies_here`,
    tensors are copied on their way to another device of the same memory.
    """

    def __init__(self, backend: StreamBackend, index: int, copies_here: bool) -> None:
        self.copies_here = copies_here
        self.backend = backend
        self.index = index
        self._named: dict[str, torch.Stream] = {}
        self._reading: list[torch.Event] = []
        self._naming = threading.Lock()
        self._sources: list[object] = []

    def named(self, stream: str) -> torch.Stream:
        """The stream of this name."""
        with self._naming:
            if stream not in self._named:
                self._named[stream] = self.backend.torch.Stream(device=self.index)
            return self._named[stream]

    @property
    def names(self) -> list[str]:
        """Names of the streams that there are."""
        with self._naming:
            return [*self._named]

    def record(self, stream: str, event: torch.Event | None = None) -> torch.Event:
        """An event that happens once the stream has finished the work queued so far.

        `event`: an earlier one that is recorded again. Streams that wait for it already keep the earlier moment.
        """
        event = self.backend.torch.Event() if event is None else event
        event.record(self.named(stream))
        return event

    def wait(self, stream: str, event: torch.Event) -> None:
        """Let a stream wait for an event, which may be another device's."""
        self.named(stream).wait_event(event)

    def copy(
        self, tensor: torch.Tensor, device: torch.device, stream: str, target: "Streams | None" = None
    ) -> torch.Tensor:
        """Enqueue a copy to a device on a stream; the caller keeps the original until the copy is done.

        `target`: the device's streams, if it has any: its memory for tensors from here waits for nothing else.
        """
        elsewhere = target is not None and target.index != self.index
        arrival = target.arrival((self.index, stream)) if target is not None and elsewhere else None
        return self.backend.copy(tensor, device, self.named(stream), arrival)

    def arrival(self, source: object) -> torch.Stream:
        """The stream from whose memory copies from a stream of another GPU are allocated."""
        with self._naming:
            if source not in self._sources:
                self._sources.append(source)
            number = self._sources.index(source) % ARRIVAL_STREAMS
        return self.named(f"arrival {number}")

    def upload(self, tensor: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Event]:
        """Enqueue a copy of a tensor of the host; it is there once the event has happened."""
        return self.backend.upload(tensor, device, self.named(_FROM_HOST)), self.record(_FROM_HOST)

    def take_input(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A copy of a tensor of the host for a program that begins afterwards."""
        copied, arrived = self.upload(tensor, device)
        # Through the caller's own stream, for which programs wait anyway.
        self.caller_waits([arrived])
        if tensor.is_pinned():
            self._reading.append(arrived)
        self.hold(copied, COMPUTE_STREAM)
        return copied

    def finish_reading(self) -> None:
        """Wait until pinned inputs have been read: the caller may change them then."""
        while self._reading:
            self._reading.pop().synchronize()

    def bring(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A copy of a tensor of the host, which the ops that follow can use, and which the host does not wait for."""
        copied, arrived = self.upload(tensor, device)
        self.wait(COMPUTE_STREAM, arrived)
        self.hold(copied, COMPUTE_STREAM)
        return copied

    def hold(self, tensor: torch.Tensor, stream: str) -> None:
        """Keep the memory of a tensor, once it is freed, until the stream has finished the work queued by then."""
        self.backend.protect(tensor, self.named(stream))

    def caller_event(self) -> torch.Event:
        """An event behind all that the calling thread has enqueued on its own stream of this device."""
        event: torch.Event = self.backend.torch.Event()
        event.record(self.backend.torch.current_stream(self.index))
        return event

    def caller_waits(self, events: Iterable[torch.Event]) -> None:
        """Let later work of the calling thread wait for events."""
        current = self.backend.torch.current_stream(self.index)
        for event in events:
            current.wait_event(event)


def as_input(tensor: torch.Tensor, device: RuntimeDevice) -> torch.Tensor:
    """On the caller's thread: a tensor on a device, for a program that begins afterwards."""
    streams = device.streams
    if streams is None or tensor.device != HOST_DEVICE or device.torch_device == HOST_DEVICE:
        return tensor.to(device.torch_device)
    return streams.take_input(tensor, device.torch_device)
