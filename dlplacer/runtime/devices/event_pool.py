"""Events that are recorded again once nobody will wait for what they stood for."""

import threading
from collections.abc import Iterable

import torch

from dlplacer.runtime.devices.stream_backend import StreamBackend


class EventPool:
    """Untimed events of one device: making one costs a call of the driver, and a step needs one for every RECORD.

    An event belongs to the device on whose stream it was recorded first. A stream that waits for an event waits for
    what it stood for at that moment, so it may be given back, and recorded again, as soon as all that wait for it are
    enqueued.
    """

    def __init__(self, backend: StreamBackend) -> None:
        self._backend = backend
        self._free: list[torch.Event] = []
        self._lock = threading.Lock()

    def recorded(self, stream: torch.Stream) -> torch.Event:
        """An event that happens once the stream has done what it was given so far."""
        with self._lock:
            event = self._free.pop() if self._free else None
        event = self._backend.event(timed=False) if event is None else event
        event.record(stream)
        return event

    def give_back(self, events: Iterable[torch.Event]) -> None:
        """Take back events of `recorded` for which nobody will wait any more."""
        with self._lock:
            self._free += events
