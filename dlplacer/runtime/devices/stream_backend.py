"""The part of torch.cuda that devices use, in one place: what is enqueued can be tested without a GPU."""

from typing import Any

import torch

# torch can only let a stream spin for a number of cycles; about the clock of data-centre GPUs. Pauses need no
# precision.
_CYCLES_PER_S = 1.5e9


class StreamBackend:
    """What devices use of torch's module for their type: ``torch.cuda``, or another with the same functions.

    Stand-ins of tests have the same methods.
    """

    def __init__(self, torch_type: str) -> None:
        self._torch: Any = torch.get_device_module(torch_type)

    def device_count(self) -> int:
        """Number of devices of the type."""
        return int(self._torch.device_count()) if self._torch.is_available() else 0

    def device_name(self, index: int) -> str:
        """Product name of a device."""
        return str(self._torch.get_device_name(index))

    def set_device(self, index: int) -> None:
        """Make a device current for the calling thread."""
        self._torch.set_device(index)

    def stream(self, index: int) -> torch.Stream:
        """A new stream of a device."""
        made: torch.Stream = self._torch.Stream(device=index)
        return made

    def activate(self, stream: torch.Stream) -> None:
        """Make a stream current for the calling thread; later ops are enqueued there."""
        self._torch.set_stream(stream)

    def copy(self, tensor: torch.Tensor, device: torch.device, stream: torch.Stream) -> torch.Tensor:
        """Enqueue a copy to a device, be it the tensor's own."""
        # Plain `.to()` would enqueue on the current streams of both devices: one late copy would stall all that is
        # queued behind it. On a stream of its own a copy delays only what waits for its event.
        with self._torch.stream(stream):
            return tensor.to(device, non_blocking=True, copy=True)

    def protect(self, tensor: torch.Tensor, stream: torch.Stream) -> None:
        """When the tensor is freed, keep its memory until the stream has done what it has been given by then."""
        # The caching allocator gives memory back to the stream on which it was allocated as soon as Python drops the
        # tensor, and knows nothing of kernels that other streams still have to run on it.
        tensor.record_stream(stream)

    def synchronize(self, index: int) -> None:
        """Wait for all streams of a device."""
        self._torch.synchronize(index)

    def event(self, timed: bool) -> torch.Event:
        """A new event."""
        made: torch.Event = self._torch.Event(enable_timing=timed)
        return made

    def pause(self, stream: torch.Stream, pause_s: float) -> None:
        """Enqueue a pause on a stream."""
        with self._torch.stream(stream):
            self._torch._sleep(int(pause_s * _CYCLES_PER_S))
