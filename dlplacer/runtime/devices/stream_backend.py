"""The part of torch.cuda that devices use, behind a protocol: what is enqueued can be tested without a GPU."""

from typing import Any, Protocol

import torch

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
        """Enqueue a copy to a device, be it the tensor's own."""

    def protect(self, tensor: Any, stream: Any) -> None:
        """When the tensor is freed, keep its memory until the stream has done what it has been given by then."""

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
