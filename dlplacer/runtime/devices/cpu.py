"""One CPU core as a device: a thread pinned to the core, one torch thread, warm memory."""

import os

import torch

from dlplacer.core.errors import InputError
from dlplacer.machines.usable_cores import usable_cores as usable_cores
from dlplacer.runtime.devices.allocator import keep_heap
from dlplacer.runtime.devices.host_thread import HostThread


class CpuDevice(HostThread):
    """The i-th core that this process may use. Tensors are handed over, not copied: cores share memory."""

    def __init__(self, index: int) -> None:
        cores = usable_cores()
        if index >= len(cores):
            raise InputError(
                f"device 'cpu:{index}' needs {index + 1} cores; this process may use {len(cores)}; name devices up to "
                f"cpu:{len(cores) - 1} or start it with more cores"
            )
        self._core = cores[index]
        keep_heap()
        threads = torch.get_num_threads()
        super().__init__(f"cpu:{index}", "cpu-core", self._prepare)
        torch.set_num_threads(threads)

    def _prepare(self) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {self._core})
        # torch keeps a number for each thread, set at its first use, and one for threads yet to come: this order
        # changes the first alone once the constructor has put back the second.
        torch.get_num_threads()
        torch.set_num_threads(1)
