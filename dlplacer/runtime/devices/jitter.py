"""A device that hesitates: random pauses wherever devices meet, to bring races to light."""

import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import Streams, streams_of


class DelayedDevice:
    """Another device with a pause, as often as not, before it sends or copies and after it receives or waits.

    Where the order of work is not enforced, some other order happens sooner or later. On CUDA the compute stream
    pauses, or the thread does (`RuntimeDevice` with ``pause``).

    Parameters
    ----------
    most_s
        The longest pause.
    seed
        Decides the pauses of this device.
    """

    def __init__(self, device: RuntimeDevice, most_s: float, seed: int) -> None:
        self._device = device
        self._most_s = most_s
        self._chooser = random.Random(f"{seed}/{device.name}")
        self.name: str = device.name
        self.type: str = device.type
        self.torch_device: torch.device = device.torch_device
        streams = streams_of(device)
        self.streams = None if streams is None else _DelayedStreams(streams, self._pause)

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """See `RuntimeDevice.submit`; pauses before the function."""

        def hesitant() -> Any:
            self._pause()
            return work()

        return self._device.submit(hesitant)

    def send(self, tensor: Any, target: RuntimeDevice) -> Any:
        """See `RuntimeDevice.send`."""
        self._pause()
        return self._device.send(tensor, target)

    def receive(self, in_flight: Any) -> Any:
        """See `RuntimeDevice.receive`."""
        tensor = self._device.receive(in_flight)
        self._pause()
        return tensor

    def drain(self) -> None:
        """See `RuntimeDevice.drain`."""
        self._device.drain()

    def synchronize(self) -> None:
        """See `RuntimeDevice.synchronize`."""
        self._device.synchronize()

    def now(self) -> Any:
        """See `RuntimeDevice.now`."""
        return self._device.now()

    def elapsed_s(self, begin: Any, end: Any) -> float:
        """See `RuntimeDevice.elapsed_s`."""
        return self._device.elapsed_s(begin, end)

    def close(self) -> None:
        """See `RuntimeDevice.close`."""
        self._device.close()

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
        self.copies_here = streams.copies_here
        self.record = streams.record
        self.hold = streams.hold
        self._streams = streams
        self._pause = pause

    def wait(self, stream: str, event: Any) -> None:
        """See `Streams.wait`."""
        self._streams.wait(stream, event)
        self._pause()

    def copy(self, tensor: Any, device: torch.device, stream: str) -> Any:
        """See `Streams.copy`."""
        self._pause()
        return self._streams.copy(tensor, device, stream)
