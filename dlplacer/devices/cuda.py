"""A CUDA device: a thread that feeds one compute stream, and one copy stream per device that it sends to.

The streams and events are reached through a `StreamBackend`, so that the order of what is enqueued can be tested
without a GPU.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dlplacer.devices.worker import Worker
from dlplacer.errors import InputError

COPIES = ("free", "forced")
_CYCLES_PER_S = 1.5e9


class StreamBackend(Protocol):
    """The part of torch.cuda that a device needs."""

    def device_count(self) -> int:
        """Number of CUDA devices."""

    def device_name(self, index: int) -> str:
        """Product name of a device."""

    def set_device(self, index: int) -> None:
        """Make a device current for the calling thread."""

    def stream(self, index: int) -> Any:
        """A new stream of a device, with ``wait_event``, ``record_event`` and ``synchronize``."""

    def activate(self, stream: Any) -> None:
        """Make a stream current for the calling thread; later ops are enqueued there."""

    def copy(self, tensor: Any, device: torch.device, stream: Any) -> Any:
        """Enqueue a copy to a device, be it the tensor's own, and keep the original alive until it is done."""

    def protect(self, tensor: Any, stream: Any) -> None:
        """Keep a tensor's memory until what a stream has been given so far is done."""

    def synchronize(self, index: int) -> None:
        """Wait for all streams of a device."""

    def event(self, timed: bool) -> Any:
        """A new event, with ``record(stream)`` and ``elapsed_time(other)``."""

    def pause(self, stream: Any, pause_s: float) -> None:
        """Enqueue a pause on a stream."""


class TorchStreams:
    """`StreamBackend` on torch.cuda."""

    def device_count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def device_name(self, index: int) -> str:
        return torch.cuda.get_device_name(index)

    def set_device(self, index: int) -> None:
        torch.cuda.set_device(index)

    def stream(self, index: int) -> Any:
        return torch.cuda.Stream(device=index)  # type: ignore[no-untyped-call]

    def activate(self, stream: Any) -> None:
        torch.cuda.set_stream(stream)

    def copy(self, tensor: Any, device: torch.device, stream: Any) -> Any:
        with torch.cuda.stream(stream):
            tensor.record_stream(stream)
            return tensor.to(device, non_blocking=True, copy=True)

    def protect(self, tensor: Any, stream: Any) -> None:
        tensor.record_stream(stream)

    def synchronize(self, index: int) -> None:
        torch.cuda.synchronize(index)

    def event(self, timed: bool) -> Any:
        return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]

    def pause(self, stream: Any, pause_s: float) -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(pause_s * _CYCLES_PER_S))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Parcel:
    """A tensor on its way, or None for an edge that carries only an order, and the event after which it is there."""

    tensor: Any
    arrived: Any


class CudaDevice:
    """The i-th CUDA device, or one of several logical devices on it. A copy leaves on a stream of its own.

    Logical devices of one GPU have threads and streams of their own. Between them a tensor is handed over with an
    event, or, with ``copies="forced"``, copied as if they were two GPUs.

    Parameters
    ----------
    part
        Number of the logical device on this GPU; None if it is the only one.
    copies
        ``free`` or ``forced``, on the way to another logical device of the same GPU.

    Attributes
    ----------
    copies_here
        Whether copies are forced.
    """

    def __init__(
        self, index: int, backend: StreamBackend | None = None, part: int | None = None, copies: str = "free"
    ) -> None:
        self._backend = backend if backend is not None else TorchStreams()
        count = self._backend.device_count()
        if index >= count:
            found = f"{count} CUDA devices" if count else "no CUDA device"
            raise InputError(
                f"device 'cuda:{index}' is not here: torch sees {found}; use cpu:0, cpu:1, … or another box"
            )
        if copies not in COPIES:
            raise InputError(f"device 'cuda:{index}': copies is {copies!r}; use {' or '.join(COPIES)}")
        self.name = f"cuda:{index}" if part is None else f"cuda:{index}/{part}"
        self.type = device_type(self._backend.device_name(index))
        self.torch_device = torch.device("cuda", index)
        self._index = index
        self.copies_here = copies == "forced"
        self._copy_streams: dict[str, Any] = {}
        self._worker = Worker(self.name, self._prepare)

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """Run a function on the thread that feeds the compute stream."""
        return self._worker.submit(work)

    def send(self, tensor: Any, target: Any) -> Any:
        """Enqueue the copy behind what computes the tensor; the compute stream goes on at once."""
        computed = self._compute.record_event()
        stays = tensor is None or (target.torch_device == self.torch_device and not self.copies_here)
        parcel = Parcel(tensor, computed) if stays else self._copied(tensor, target, computed)
        if target.torch_device.type == "cuda":
            return parcel
        parcel.arrived.synchronize()
        return parcel.tensor

    def receive(self, parcel: Any) -> Any:
        """The tensor; the compute stream waits for its arrival, and its memory waits for the compute stream."""
        tensor = parcel
        if isinstance(parcel, Parcel):
            self._compute.wait_event(parcel.arrived)
            tensor = parcel.tensor
        if tensor is not None:
            self._backend.protect(tensor, self._compute)
        return tensor

    def settle(self) -> None:
        """Wait for all streams, so that what the caller enqueued on its own stream is done."""
        self._backend.synchronize(self._index)

    def synchronize(self) -> None:
        """Wait for the compute stream."""
        self._compute.synchronize()

    def now(self) -> Any:
        """An event recorded on the compute stream."""
        event = self._backend.event(timed=True)
        event.record(self._compute)
        return event

    def elapsed_s(self, begin: Any, end: Any) -> float:
        """Seconds between two events."""
        return float(begin.elapsed_time(end)) * 1e-3

    def pause(self, pause_s: float) -> None:
        """On this device's thread: let the compute stream pause."""
        self._backend.pause(self._compute, pause_s)

    def close(self) -> None:
        """End the thread."""
        self._worker.close()

    def _prepare(self) -> None:
        self._backend.set_device(self._index)
        self._compute = self._backend.stream(self._index)
        self._backend.activate(self._compute)

    def _copied(self, tensor: Any, target: Any, computed: Any) -> Parcel:
        if target.name not in self._copy_streams:
            self._copy_streams[target.name] = self._backend.stream(self._index)
        stream = self._copy_streams[target.name]
        stream.wait_event(computed)
        copied = self._backend.copy(tensor, target.torch_device, stream)
        return Parcel(copied, stream.record_event())


def device_type(product: str) -> str:
    """The type under which times are kept: ``H200`` for "NVIDIA H200", else the product name."""
    words = re.split(r"[\s\-]+", product)
    return next((word for word in words if re.fullmatch(r"[A-Z]{1,3}\d{2,4}[A-Z]?", word)), product)
