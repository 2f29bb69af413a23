"""The network as a device: a thread on which collectives run while the compute devices go on."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dlplacer.runtime.devices.device_kind import HOST_DEVICE
from dlplacer.runtime.devices.worker import Worker
from dlplacer.runtime.distributed.ranks import NETWORK


class NetworkDevice:
    """Takes vectors from CPU devices and gives them back; its thread is free to run on any core of the process."""

    def __init__(self) -> None:
        self.name = NETWORK
        self.type = NETWORK
        self.torch_device = HOST_DEVICE
        self._worker = Worker(self.name, lambda: None)

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """Run a function on the thread."""
        return self._worker.submit(work)

    def send(self, tensor: Any, target: Any) -> Any:
        """The tensor itself, or a copy on a device with memory of its own."""
        return tensor if tensor is None else tensor.to(target.torch_device)

    def receive(self, in_flight: Any) -> Any:
        """The tensor: it is ready when it arrives."""
        return in_flight

    def drain(self) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for: a collective has finished when its call returns."""

    def now(self) -> int:
        """Nanoseconds of a monotonic clock."""
        return time.perf_counter_ns()

    def elapsed_s(self, begin: int, end: int) -> float:
        """Seconds between two marks."""
        return (end - begin) * 1e-9

    def close(self) -> None:
        """End the thread."""
        self._worker.close()
