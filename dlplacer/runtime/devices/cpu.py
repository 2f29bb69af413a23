"""CPU cores as devices: one thread per core, tensors shared between them, and a C heap that keeps freed memory.

By default glibc maps and unmaps memory for every large tensor, and the page faults of two threads delay each other."""

import ctypes
import os
import platform
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import torch

from dlplacer.core.errors import InputError
from dlplacer.machines.cores import usable_cores
from dlplacer.machines.costs.device_table import CORE
from dlplacer.runtime.devices.base import DeviceKind, RuntimeDevice, Worker

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8
# No block is mapped separately, the top of the heap is never returned to the system, the heap grows by 64 MiB at a
# time, and new threads share one arena.
_KEPT = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_TOP_PAD: 64 * 2**20, _M_ARENA_MAX: 1}
# glibc's defaults (malloc.c). Any setting stops the adaptive mmap threshold, so its largest value is set here.
_DEFAULT = {_M_MMAP_MAX: 65536, _M_TRIM_THRESHOLD: 2**17, _M_TOP_PAD: 2**17, _M_MMAP_THRESHOLD: 32 * 2**20}

_users = 0
_counting = threading.Lock()


def keep_heap() -> None:
    """Serve all blocks from one heap and keep freed memory, until `release_heap`."""
    global _users
    with _counting:
        _users += 1
        _configure(_KEPT)


def release_heap() -> None:
    """Undo one `keep_heap`; the last call restores glibc's defaults except for arenas, and frees memory."""
    global _users
    with _counting:
        _users -= 1
        if not _users:
            _configure(_DEFAULT)


def _configure(settings: dict[int, int]) -> None:
    """Set parameters of glibc's heap and return free memory to the system; do nothing with another C library."""
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(library, "gnu_get_libc_version"):
        for name, value in settings.items():
            library.mallopt(name, value)
        library.malloc_trim(0)


_CPU_INFO = Path("/proc/cpuinfo")


class CpuDevice(RuntimeDevice):
    """The i-th core that this process may use: a pinned thread in which torch is single-threaded; see `keep_heap`."""

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
        super().__init__(f"cpu:{index}", CORE, worker=Worker(f"cpu:{index}", self._prepare))
        torch.set_num_threads(threads)

    def close(self) -> None:
        """End the thread; closing the last core restores the heap's defaults."""
        super().close()
        self._releasing()

    def _prepare(self) -> None:
        pin_thread(self.core)
        # torch keeps one thread count per thread, set at first use, and one for new threads. This order sets both, and
        # the constructor restores the second.
        torch.get_num_threads()
        torch.set_num_threads(1)


def pin_thread(core: int) -> None:
    """Pin the calling thread to a core, if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def cpu_name() -> str:
    """The processor's name, as the operating system reports it."""
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.is_file() else []
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
