"""A device in the host's memory: a thread between which tensors are handed over; and one CPU core as such a device."""

import os
import platform
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import torch

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.device_table import CORE
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.runtime.devices.allocator import keep_heap, on_kept_heap, release_heap
from dlplacer.runtime.devices.base import HOST_DEVICE, DeviceKind, InFlight, RuntimeDevice, TensorInFlight, Value
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.devices.worker import Worker

_CPU_INFO = Path("/proc/cpuinfo")


class HostDevice(Worker):
    """A `RuntimeDevice` whose ops are done when their calls return: nothing has to be waited for."""

    def __init__(
        self,
        name: str,
        type: str,
        prepare: Callable[[], None] = lambda: None,
        suits: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.type = type
        self.torch_device = HOST_DEVICE
        super().__init__(name, prepare, suits)

    @property
    def worker(self) -> Worker:
        """The device itself."""
        return self

    def activate(self) -> None:
        """Nothing to do: the thread is this device's alone."""

    def send(self, tensor: Value, target: RuntimeDevice) -> InFlight:
        """The tensor itself to a device of the same memory; a copy to any other, which may be under way."""
        if tensor is None or target.torch_device == HOST_DEVICE:
            return tensor
        streams = streams_of(target)
        if streams is None:
            return tensor.to(target.torch_device)
        return TensorInFlight(*streams.upload(tensor, target.torch_device))

    def receive(self, in_flight: InFlight) -> Value:
        """The tensor: it is ready when it arrives."""
        assert not isinstance(in_flight, TensorInFlight)
        return in_flight

    def drain(self) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def now(self) -> int:
        """Nanoseconds of a monotonic clock."""
        return time.perf_counter_ns()

    def elapsed_s(self, begin: int, end: int) -> float:
        """Seconds between two marks."""
        return (end - begin) * 1e-9


class CpuDevice(HostDevice):
    """The i-th core that this process may use: a pinned thread, one torch thread, memory that the heap keeps."""

    def __init__(self, index: int) -> None:
        cores = usable_cores()
        if index >= len(cores):
            raise InputError(
                f"device 'cpu:{index}' needs {index + 1} cores; this process may use {len(cores)}; name devices up to "
                f"cpu:{len(cores) - 1} or start it with more cores"
            )
        self.core = cores[index]
        keep_heap()
        self._releasing = weakref.finalize(self, release_heap)
        self._releasing.atexit = False
        threads = torch.get_num_threads()
        super().__init__(f"cpu:{index}", CORE, self._prepare, on_kept_heap)
        torch.set_num_threads(threads)

    def close(self) -> None:
        """End the thread; the last core gives the heap back."""
        super().close()
        self._releasing()

    def _prepare(self) -> None:
        pin_thread(self.core)
        # torch keeps a number for each thread, set at its first use, and one for threads yet to come: this order
        # changes the first alone once the constructor has put back the second.
        torch.get_num_threads()
        torch.set_num_threads(1)


def pin_thread(core: int) -> None:
    """Keep the calling thread on a core, if the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def cpu_name() -> str:
    """The processor's name, as the operating system reports it."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


CPU = DeviceKind(
    torch_type="cpu",
    open=lambda index, part=None, copies="free": CpuDevice(index),
    count=lambda: len(usable_cores()),
    in_host_memory=True,
    divisible=False,
    collectives="gloo",
    generator=lambda index: torch.default_generator,
    versions=lambda index: {"hardware": cpu_name()},
)
