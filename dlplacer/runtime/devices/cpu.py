"""One CPU core as a device: a thread pinned to the core, one torch thread, warm memory."""

import os
import platform
from pathlib import Path

import torch

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.device_table import CORE
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.runtime.devices.allocator import keep_heap, on_kept_heap
from dlplacer.runtime.devices.device_kind import DeviceKind
from dlplacer.runtime.devices.host_device import HostDevice

_CPU_INFO = Path("/proc/cpuinfo")


class CpuDevice(HostDevice):
    """The i-th core that this process may use. Tensors are handed over, not copied: cores share memory."""

    def __init__(self, index: int) -> None:
        cores = usable_cores()
        if index >= len(cores):
            raise InputError(
                f"device 'cpu:{index}' needs {index + 1} cores; this process may use {len(cores)}; name devices up to "
                f"cpu:{len(cores) - 1} or start it with more cores"
            )
        self.core = cores[index]
        keep_heap()
        threads = torch.get_num_threads()
        super().__init__(f"cpu:{index}", CORE, self._prepare, on_kept_heap)
        torch.set_num_threads(threads)

    def _prepare(self) -> None:
        pin_thread(self.core)
        # torch keeps a number for each thread, set at its first use, and one for threads yet to come: this order
        # changes the first alone once the constructor has put back the second.
        torch.get_num_threads()
        torch.set_num_threads(1)


def pin_thread(core: int) -> None:
    """Keep the calling thread on a core, where the system can."""
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
