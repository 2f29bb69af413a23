"""A CUDA device: a compute stream and copy streams; one thread issues the work of all CUDA devices."""

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch

from dlplacer.core.errors import InputError
from dlplacer.machines.importers.products import type_of_name
from dlplacer.runtime.devices.base import HOST_DEVICE, DeviceKind, Reply, RuntimeDevice, T, Value, issuing_thread

capturing = threading.Lock()
"""Held during the capture of a CUDA graph: torch allows one per process, and other threads may not use its stream."""


class StreamBackend:
    """Stream operations of a device type, through its torch module, such as ``torch.cuda``.

    `module`: a substitute for torch's module.
    """

    def __init__(self, torch_type: str, module: Any = None) -> None:
        self.torch: Any = torch.get_device_module(torch_type) if module is None else module

    def device_count(self) -> int:
        """Number of devices of the type."""
        return int(self.torch.device_count()) if self.torch.is_available() else 0

    def copy(
        self, tensor: torch.Tensor, device: torch.device, stream: torch.Stream, arrival: torch.Stream | None = None
    ) -> torch.Tensor:
        """Enqueue a copy to a device, which may be the tensor's own.

        `arrival`: a stream of the target, if that is another GPU; the copy gets its memory from this stream.
        """
        # Plain `.to()` would enqueue on the current streams of both devices, so one late copy would stall all later
        # work. On the target, torch orders the copy with the current stream in both directions: here `arrival`.
        with ExitStack() as current:
            if arrival is not None:
                current.enter_context(self.torch.stream(arrival))
            current.enter_context(self.torch.stream(stream))
            if device.type == "cpu":
                # A non-blocking copy takes its target from torch's pool of pinned memory.
                return tensor.to(device, non_blocking=True, copy=True)
            return torch.empty_like(tensor, device=device).copy_(tensor, non_blocking=True)

    def upload(self, tensor: torch.Tensor, device: torch.device, stream: torch.Stream) -> torch.Tensor:
        """Enqueue a copy from host to device; an unpinned tensor is staged, so the caller may change it at once."""
        with self.torch.stream(stream):
            # A copy from pageable memory makes the host wait. Torch's pool of pinned memory reuses a buffer only after
            # all copies from it.
            source = tensor if tensor.is_pinned() else self.pinned(tensor)
            return torch.empty_like(tensor, device=device).copy_(source, non_blocking=True)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a host tensor in pinned memory."""
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def protect(self, tensor: torch.Tensor, stream: torch.Stream) -> None:
        """Once a tensor is freed, keep its memory until the stream has finished all work queued by then."""
        # The caching allocator does not know of pending kernels on streams other than the allocating one.
        tensor.record_stream(stream)


COMPUTE_STREAM = "compute"
"""Name of the stream on which a device computes."""

COPY_STREAMS, ARRIVAL_STREAMS = 3, 2
"""Streams of a device for copies to and from other devices. With the compute stream, the stream for host copies and
the caller's, there are 8: GPUs have 8 hardware queues by default, and streams that share a queue block each other."""

_FROM_HOST = "from host"


class Streams:
    """The streams of a device, used on the device's thread; a stream is created when it is first named.

    Any thread may call `upload`, `caller_event`, `caller_waits`, `take_input` and `finish_reading`. With `copies_here`,
    a tensor is copied even to another device with the same memory.
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
        """Names of the streams created so far."""
        with self._naming:
            return [*self._named]

    def record(self, stream: str, event: torch.Event | None = None) -> torch.Event:
        """An event that happens once the stream has finished the work queued so far.

        `event`: an earlier event to record again; streams that already wait for it keep its earlier recording.
        """
        event = self.backend.torch.Event() if event is None else event
        event.record(self.named(stream))
        return event

    def wait(self, stream: str, event: torch.Event) -> None:
        """Make a stream wait for an event, possibly of another device."""
        self.named(stream).wait_event(event)

    def copy(
        self, tensor: torch.Tensor, device: torch.device, stream: str, target: "Streams | None" = None
    ) -> torch.Tensor:
        """Enqueue a copy to a device on a stream; the caller keeps the original until the copy is done.

        `target`: the streams of `device`, None if it has none; on another GPU, an arrival stream provides the memory.
        """
        elsewhere = target is not None and target.index != self.index
        arrival = target.arrival((self.index, stream)) if target is not None and elsewhere else None
        return self.backend.copy(tensor, device, self.named(stream), arrival)

    def arrival(self, source: object) -> torch.Stream:
        """The stream whose memory is used for copies from `source`: (GPU, stream) of another device."""
        with self._naming:
            if source not in self._sources:
                self._sources.append(source)
            number = self._sources.index(source) % ARRIVAL_STREAMS
        return self.named(f"arrival {number}")

    def upload(self, tensor: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Event]:
        """Enqueue a copy of a host tensor; it has arrived once the returned event has happened."""
        return self.backend.upload(tensor, device, self.named(_FROM_HOST)), self.record(_FROM_HOST)

    def take_input(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A copy of a host tensor for programs that begin later."""
        copied, arrived = self.upload(tensor, device)
        # The caller's stream waits for the copy, and programs wait for that stream anyway.
        self.caller_waits([arrived])
        if tensor.is_pinned():
            self._reading.append(arrived)
        self.hold(copied, COMPUTE_STREAM)
        return copied

    def finish_reading(self) -> None:
        """Wait until all pinned inputs have been read, so that the caller may change them."""
        while self._reading:
            self._reading.pop().synchronize()

    def bring(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A copy of a host tensor for the ops that follow; the host does not wait for it."""
        copied, arrived = self.upload(tensor, device)
        self.wait(COMPUTE_STREAM, arrived)
        self.hold(copied, COMPUTE_STREAM)
        return copied

    def hold(self, tensor: torch.Tensor, stream: str) -> None:
        """Once a tensor is freed, keep its memory until the stream has finished all work queued by then."""
        self.backend.protect(tensor, self.named(stream))

    def caller_event(self) -> torch.Event:
        """An event after all work that the calling thread has enqueued on its own stream of this device."""
        event: torch.Event = self.backend.torch.Event()
        event.record(self.backend.torch.current_stream(self.index))
        return event

    def caller_waits(self, events: Iterable[torch.Event]) -> None:
        """Make later work of the calling thread wait for events."""
        current = self.backend.torch.current_stream(self.index)
        for event in events:
            current.wait_event(event)


def as_input(tensor: torch.Tensor, device: RuntimeDevice) -> torch.Tensor:
    """On the caller's thread: move a tensor to a device, for programs that begin later."""
    streams = device.streams
    if streams is None or tensor.device != HOST_DEVICE or device.torch_device == HOST_DEVICE:
        return tensor.to(device.torch_device)
    return streams.take_input(tensor, device.torch_device)


# torch can pause a stream only for a number of cycles; this is about the clock rate of data-centre GPUs.
_CYCLES_PER_S = 1.5e9


class CudaDevice(RuntimeDevice):
    """The i-th CUDA device, or one of several logical devices on it, each with its own streams.

    The program orders streams and copies tensors explicitly. `part` is the number of a logical device; with `copies`
    ``forced``, its tensors are copied to other logical devices as between two GPUs. `torch_type`: torch's name of the
    kind. A kind with the same interface of streams and events, such as XPU, is a subclass.
    """

    torch_type = "cuda"
    streams: Streams

    def __init__(
        self, index: int, backend: StreamBackend | None = None, part: int | None = None, copies: str = "free"
    ) -> None:
        self._backend = backend if backend is not None else StreamBackend(self.torch_type)
        count, whole = self._backend.device_count(), f"{self.torch_type}:{index}"
        if index >= count:
            kind = self.torch_type.upper()
            found = f"{count} {kind} devices" if count else f"no {kind} device"
            raise InputError(f"device '{whole}' is not here: torch sees {found}; use cpu:0, cpu:1, … or another host")
        name = whole if part is None else f"{whole}/{part}"
        product = self._backend.torch.get_device_name(index)
        super().__init__(name, type_of_name(product), torch.device(self.torch_type, index), issuing_thread())
        self.streams = Streams(self._backend, index, copies_here=copies == "forced")
        self._index, self._closed = index, False
        self.submit(lambda: None).result()

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """See `RuntimeDevice.submit`."""
        if self._closed:
            raise InputError(f"device {self.name!r} is closed; apply the plan again to run it")

        def on_device() -> T:
            self.activate()
            return work()

        return self.worker.submit(on_device)

    def activate(self) -> None:
        """Make the device and its compute stream current."""
        self._backend.torch.set_device(self._index)
        self._backend.torch.set_stream(self._compute)

    def close(self) -> None:
        """Accept no more work; the thread goes on for other devices."""
        self._closed = True

    def receive(self, tensor: Value) -> Value:
        """Copy a tensor from the host's memory; the compute stream waits for the copy."""
        return None if tensor is None else self.streams.bring(tensor, self.torch_device)

    def drain(self) -> None:
        """Wait for all streams, including the caller's own."""
        self._backend.torch.synchronize(self._index)

    def synchronize(self) -> None:
        """Wait for the compute stream."""
        self._compute.synchronize()

    def now(self) -> torch.Event:
        """An event recorded on the compute stream."""
        event: torch.Event = self._backend.torch.Event(enable_timing=True)
        event.record(self._compute)
        return event

    def elapsed_s(self, begin: torch.Event, end: torch.Event) -> float:
        """Seconds between two events."""
        return float(begin.elapsed_time(end)) * 1e-3

    def pause(self, pause_s: float) -> None:
        """Make the compute stream pause."""
        with self._backend.torch.stream(self._compute):
            self._backend.torch._sleep(int(pause_s * _CYCLES_PER_S))

    @property
    def _compute(self) -> torch.Stream:
        return self.streams.named(COMPUTE_STREAM)


# ROCm wheels expose AMD GPUs as CUDA devices; only torch.version.hip shows it.
_SOFTWARE = {"rocm": str(torch.version.hip)} if torch.version.hip else {"cuda": str(torch.version.cuda)}

CUDA = DeviceKind(
    torch_type=CudaDevice.torch_type,
    open=CudaDevice,
    count=StreamBackend(CudaDevice.torch_type).device_count,
    in_host_memory=False,
    divisible=True,
    collectives="nccl",
    generator=lambda index: torch.cuda.default_generators[index],
    versions=lambda index: {"hardware": torch.cuda.get_device_name(index), **_SOFTWARE},
)
