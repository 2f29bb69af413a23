"""The streams of a device by name, and the operations of a program on them."""

import torch

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.stream_backend import StreamBackend

COMPUTE_STREAM = "compute"
"""Name of the stream on which a device computes."""


class Streams:
    """What a device with streams has in addition to `RuntimeDevice`; called on the device's thread.

    The first is ``compute``, others are made when they are first named.

    Attributes
    ----------
    copies_here
        Whether tensors are copied on their way to another device of the same memory.
    """

    def __init__(self, backend: StreamBackend, index: int, copies_here: bool) -> None:
        self.copies_here = copies_here
        self._backend = backend
        self._index = index
        self._named: dict[str, torch.Stream] = {}

    def named(self, stream: str) -> torch.Stream:
        """The stream of this name."""
        if stream not in self._named:
            self._named[stream] = self._backend.stream(self._index)
        return self._named[stream]

    def record(self, stream: str) -> torch.Event:
        """An event that happens once the stream has done what it was given so far."""
        return self.named(stream).record_event()

    def wait(self, stream: str, event: torch.Event) -> None:
        """Let a stream wait for an event, which may be another device's."""
        self.named(stream).wait_event(event)

    def copy(self, tensor: torch.Tensor, device: torch.device, stream: str) -> torch.Tensor:
        """Enqueue a copy to a device on a stream; the caller keeps the original until the copy is done."""
        return self._backend.copy(tensor, device, self.named(stream))

    def hold(self, tensor: torch.Tensor, stream: str) -> None:
        """When the tensor is freed, keep its memory until the stream has done what it has been given by then."""
        self._backend.protect(tensor, self.named(stream))


def streams_of(device: RuntimeDevice) -> Streams | None:
    """The device's streams, None if it has none."""
    streams: Streams | None = getattr(device, "streams", None)
    return streams
