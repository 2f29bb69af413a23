"""A device with random delays at every synchronization point, to provoke races."""

import random
import time
from collections.abc import Callable
from typing import Any

import torch

from dlplacer.runtime.devices.base import RuntimeDevice, Value
from dlplacer.runtime.devices.streams import Streams
from dlplacer.runtime.devices.worker import Reply, T


class DelayedDevice:
    """Another device with a pause of at most `most_s`, with probability ½, before it sends or copies and after it
    receives or waits.

    An order of work that is not enforced is broken sooner or later. On CUDA the compute stream pauses, or the thread.
    """

    def __init__(self, device: RuntimeDevice, most_s: float, seed: int) -> None:
        self._device = device
        self._most_s = most_s
        self._chooser = random.Random(f"{seed}/{device.name}")
        streams = device.streams
        self.streams = None if streams is None else _DelayedStreams(streams, self._pause)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """See `RuntimeDevice.submit`; pauses before the function."""

        def hesitant() -> T:
            self._pause()
            return work()

        return self._device.submit(hesitant)

    def receive(self, tensor: Value) -> Value:
        self._pause()
        received = self._device.receive(tensor)
        self._pause()
        return received

    def _pause(self) -> None:
        if self._chooser.random() < 0.5:
            return
        pause_s = self._chooser.uniform(0, self._most_s)
        on_stream = getattr(self._device, "pause", None)
        if on_stream is not None and self._chooser.random() < 0.5:
            on_stream(pause_s)
        else:
            time.sleep(pause_s)


class _DelayedStreams:
    """`Streams` with a pause before copies and after waits."""

    def __init__(self, streams: Streams, pause: Callable[[], None]) -> None:
        self._streams = streams
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)

    def wait(self, stream: str, event: torch.Event) -> None:
        self._streams.wait(stream, event)
        self._pause()

    def copy(
        self, tensor: torch.Tensor, device: torch.device, stream: str, target: Streams | None = None
    ) -> torch.Tensor:
        self._pause()
        return self._streams.copy(tensor, device, stream, target)
