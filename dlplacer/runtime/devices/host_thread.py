"""A thread of this process as a device: what CPU cores and the network have in common."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from dlplacer.runtime.devices.worker import Worker


class HostThread:
    """A device whose ops have finished when their calls return; tensors in the host's memory are handed over.

    Parameters
    ----------
    name, type
        As in `RuntimeDevice`.
    prepare
        What its thread runs first.
    """

    torch_device = torch.device("cpu")

    def __init__(self, name: str, type: str, prepare: Callable[[], None] = lambda: None) -> None:
        self.name, self.type = name, type
        self._worker = Worker(name, prepare)

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """Run a function on the thread."""
        return self._worker.submit(work)

    def send(self, tensor: Any, target: Any) -> Any:
        """The tensor itself, or a copy on a device with memory of its own."""
        if target.torch_device.type == "cpu" or tensor is None:
            return tensor
        return tensor.to(target.torch_device)

    def receive(self, in_flight: Any) -> Any:
        """The tensor: it is ready when it arrives."""
        return in_flight

    def drain(self) -> None:
        """Nothing to wait for: other threads' ops have finished when their calls return."""

    def synchronize(self) -> None:
        """Nothing to wait for, as in `drain`."""

    def now(self) -> int:
        """Nanoseconds of a monotonic clock."""
        return time.perf_counter_ns()

    def elapsed_s(self, begin: int, end: int) -> float:
        """Seconds between two marks."""
        return (end - begin) * 1e-9

    def close(self) -> None:
        """End the thread."""
        self._worker.close()
