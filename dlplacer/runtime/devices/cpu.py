"""One CPU core as a device: a thread pinned to the core, one torch thread, warm memory."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from dlplacer.core.errors import InputError
from dlplacer.machines.usable_cores import usable_cores as usable_cores
from dlplacer.runtime.devices.allocator import keep_heap
from dlplacer.runtime.devices.worker import Worker


class CpuDevice:
    """The i-th core that this process may use. Tensors are handed over, not copied: cores share memory."""

    def __init__(self, index: int) -> None:
        cores = usable_cores()
        if index >= len(cores):
            raise InputError(
                f"device 'cpu:{index}' needs {index + 1} cores; this process may use {len(cores)}; name devices up to "
                f"cpu:{len(cores) - 1} or start it with more cores"
            )
        self.name = f"cpu:{index}"
        self.type = "cpu-core"
        self.torch_device = torch.device("cpu")
        self._core = cores[index]
        keep_heap()
        threads = torch.get_num_threads()
        self._worker = Worker(self.name, self._prepare)
        torch.set_num_threads(threads)

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """Run a function on the pinned thread."""
        return self._worker.submit(work)

    def send(self, tensor: Any, target: Any) -> Any:
        """The tensor itself to another core; a copy to any other device."""
        if target.torch_device.type == "cpu" or tensor is None:
            return tensor
        return tensor.to(target.torch_device)

    def receive(self, in_flight: Any) -> Any:
        """The tensor: it is ready when it arrives."""
        return in_flight

    def drain(self) -> None:
        """Nothing to wait for: other threads' ops have finished when their calls return."""

    def synchronize(self) -> None:
        """Nothing to wait for: a CPU op has finished when its call returns."""

    def now(self) -> int:
        """Nanoseconds of a monotonic clock."""
        return time.perf_counter_ns()

    def elapsed_s(self, begin: int, end: int) -> float:
        """Seconds between two marks."""
        return (end - begin) * 1e-9

    def close(self) -> None:
        """End the thread."""
        self._worker.close()

    def _prepare(self) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {self._core})
        # torch keeps a number for each thread, set at its first use, and one for threads yet to come: this order
        # changes the first alone once the constructor has put back the second.
        torch.get_num_threads()
        torch.set_num_threads(1)
