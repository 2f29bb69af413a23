"""The adapter to torch.cuda: what is enqueued can be tested without a GPU."""

import threading
from contextlib import ExitStack
from typing import Any

import torch

# torch can only let a stream spin for a number of cycles; about the clock of data-centre GPUs.
_CYCLES_PER_S = 1.5e9

capturing = threading.Lock()
"""Held during a capture: torch allows one at a time in a process, and no other thread may touch its stream then."""


class StreamBackend:
    """The functions that devices use of torch's module for their type: ``torch.cuda``, or another with the same ones.

    `module`: a stand-in for torch's own.
    """

    def __init__(self, torch_type: str, module: Any = None) -> None:
        self._torch: Any = torch.get_device_module(torch_type) if module is None else module

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

    def current(self, index: int) -> torch.Stream:
        """The stream on which the calling thread's ops are enqueued on a device."""
        found: torch.Stream = self._torch.current_stream(index)
        return found

    def activate(self, stream: torch.Stream) -> None:
        """Make a stream current for the calling thread; later ops are enqueued there."""
        self._torch.set_stream(stream)

    def on(self, stream: torch.Stream) -> Any:
        """A context in which a stream is current for the calling thread."""
        return self._torch.stream(stream)

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
                current.enter_context(self._torch.stream(arrival))
            current.enter_context(self._torch.stream(stream))
            if device.type == "cpu":
                # Without blocking, torch takes the target from its pool of pinned memory.
                return tensor.to(device, non_blocking=True, copy=True)
            return torch.empty_like(tensor, device=device).copy_(tensor, non_blocking=True)

    def upload(self, tensor: torch.Tensor, device: torch.device, stream: torch.Stream) -> torch.Tensor:
        """Enqueue a copy from the host's memory to a device; what is not pinned is staged, and may change at once."""
        with self._torch.stream(stream):
            # A copy from pageable memory makes the host wait. Torch's pool of pinned memory gives a buffer away again
            # only after the copies that read it.
            source = tensor if tensor.is_pinned() else self.pinned(tensor)
            return torch.empty_like(tensor, device=device).copy_(source, non_blocking=True)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the host in pinned memory."""
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def protect(self, tensor: torch.Tensor, stream: torch.Stream) -> None:
        """When the tensor is freed, keep its memory until the stream has done what it has been given by then."""
        # The caching allocator knows nothing of kernels that other streams than the allocating one still have to run.
        tensor.record_stream(stream)

    def synchronize(self, index: int) -> None:
        """Wait for all streams of a device."""
        self._torch.synchronize(index)

    def event(self, timed: bool) -> torch.Event:
        """A new event."""
        made: torch.Event = self._torch.Event(enable_timing=timed)
        return made

    def graph(self) -> Any:
        """An empty graph (``torch.cuda.CUDAGraph``)."""
        return self._torch.CUDAGraph()

    def graph_pool(self) -> Any:
        """A pool of memory for graphs that are always replayed in the order in which they were captured."""
        return self._torch.graph_pool_handle()

    def pause(self, stream: torch.Stream, pause_s: float) -> None:
        """Enqueue a pause on a stream."""
        with self._torch.stream(stream):
            self._torch._sleep(int(pause_s * _CYCLES_PER_S))
