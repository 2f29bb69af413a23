"""The streams of a device by name, and the operations of a program on them."""

import threading
from collections.abc import Iterable

import torch

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.event_pool import EventPool
from dlplacer.runtime.devices.stream_backend import StreamBackend

COMPUTE_STREAM = "compute"
"""Name of the stream on which a device computes."""


class Streams:
    """What a device with streams has in addition to `RuntimeDevice`; called on the device's thread but for the rest.

    From any thread: `upload`, and what orders the caller's own stream, `caller_event`, `caller_waits` and `take_input`.
    The first stream is ``compute``, others are made when they are first named.

    Attributes
    ----------
    copies_here
        Whether tensors are copied on their way to another device of the same memory.
    events
        The events that `record` records; who has no more use for one gives it back.
    """

    def __init__(self, backend: StreamBackend, index: int, copies_here: bool) -> None:
        self.copies_here = copies_here
        self.events = EventPool(backend)
        self.backend = backend
        self.index = index
        self._named: dict[str, torch.Stream] = {}
        self._reading: list[torch.Event] = []
        self._naming = threading.Lock()

    def named(self, stream: str) -> torch.Stream:
        """The stream of this name."""
        with self._naming:
            if stream not in self._named:
                self._named[stream] = self.backend.stream(self.index)
            return self._named[stream]

    def record(self, stream: str) -> torch.Event:
        """An event that happens once the stream has done what it was given so far."""
        return self.events.recorded(self.named(stream))

    def wait(self, stream: str, event: torch.Event) -> None:
        """Let a stream wait for an event, which may be another device's."""
        self.named(stream).wait_event(event)

    def copy(
        self, tensor: torch.Tensor, device: torch.device, stream: str, target: "Streams | None" = None
    ) -> torch.Tensor:
        """Enqueue a copy to a device on a stream; the caller keeps the original until the copy is done.

        Parameters
        ----------
        target
            The streams of the device, if it has any: the copy comes from the memory of the one for tensors from here,
            which waits for nothing else.
        """
        elsewhere = target is not None and target.index != self.index
        arrival = target.named(f"from {self.index} {stream}") if target is not None and elsewhere else None
        return self.backend.copy(tensor, device, self.named(stream), arrival)

    def upload(self, tensor: torch.Tensor, device: torch.device, stream: str) -> tuple[torch.Tensor, torch.Event]:
        """From any thread: enqueue a copy of a tensor of the host; it is there once the event has happened."""
        named = self.named(stream)
        return self.backend.upload(tensor, device, named), self.events.recorded(named)

    def take_input(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """From the caller's thread: a copy of a tensor of the host for a program that begins afterwards."""
        copied, arrived = self.upload(tensor, device, "inputs")
        # Through the caller's own stream, for which programs wait anyway.
        self.caller_waits([arrived])
        if tensor.is_pinned():
            self._reading.append(arrived)
        else:
            self.events.give_back([arrived])
        self.hold(copied, COMPUTE_STREAM)
        return copied

    def finish_reading(self) -> None:
        """From the caller's thread: wait until inputs that were pinned, and not staged, have been read.

        The caller may change them then. The copies wait for nothing, so that they have long been done when all that
        follows is issued.
        """
        while self._reading:
            event = self._reading.pop()
            event.synchronize()
            self.events.give_back([event])

    def bring(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A copy of a tensor of the host, which the ops that follow can use, and which the host does not wait for."""
        copied, arrived = self.upload(tensor, device, "from host")
        self.wait(COMPUTE_STREAM, arrived)
        self.events.give_back([arrived])
        self.hold(copied, COMPUTE_STREAM)
        return copied

    def hold(self, tensor: torch.Tensor, stream: str) -> None:
        """When the tensor is freed, keep its memory until the stream has done what it has been given by then."""
        self.backend.protect(tensor, self.named(stream))

    def caller_event(self) -> torch.Event:
        """From any thread: an event behind all that the thread has enqueued on its own stream of this device."""
        return self.events.recorded(self.backend.current(self.index))

    def caller_waits(self, events: Iterable[torch.Event]) -> None:
        """From any thread: let what the thread enqueues from now on wait for events."""
        current = self.backend.current(self.index)
        for event in events:
            current.wait_event(event)


def streams_of(device: RuntimeDevice) -> Streams | None:
    """The device's streams, None if it has none."""
    streams: Streams | None = getattr(device, "streams", None)
    return streams
