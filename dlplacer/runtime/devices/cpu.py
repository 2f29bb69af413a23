"""CPU cores as devices: a thread each, between which tensors are handed over, on a C heap that keeps freed memory.

With glibc's defaults every large tensor is mapped and unmapped, and the page faults of two threads slow each other."""

import ctypes
import functools
import mmap
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
# No block is mapped separately, nothing is returned at the top of the heap, it grows by 64 MiB at a time, and new
# threads share one arena.
_KEPT = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_TOP_PAD: 64 * 2**20, _M_ARENA_MAX: 1}
# glibc's defaults (malloc.c); the threshold is the largest that its own rule reaches, which any setting switches off.
_DEFAULT = {_M_MMAP_MAX: 65536, _M_TRIM_THRESHOLD: 2**17, _M_TOP_PAD: 2**17, _M_MMAP_THRESHOLD: 32 * 2**20}

_SHARE_OF_FREE_MEMORY = 0.25
"""Other processes of a run reserve at the same time."""

_UNCACHED_BYTES, _NON_MAIN_ARENA = 2**16, 4
"""More than threads keep for themselves; and the bit in the word ahead of a block (malloc.c: NON_MAIN_ARENA)."""

_users = 0
_counting = threading.Lock()


def keep_heap() -> bool:
    """Serve all blocks from one heap and keep freed memory, until `release_heap`; True if it could be configured."""
    global _users
    with _counting:
        _users += 1
        return _configure(_KEPT)


def release_heap() -> None:
    """Undo one `keep_heap`: after the last the heap is as glibc has it, and free memory goes back to the system."""
    global _users
    with _counting:
        _users -= 1
        if not _users and _configure(_DEFAULT):
            _glibc().malloc_trim(0)


def reserve_heap(size_bytes: int) -> None:
    """Grow a kept heap by a size, at most a quarter of the free memory, and touch its pages."""
    library = _glibc()
    if library is None or not _users:
        return
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size_bytes = min(size_bytes, int(_SHARE_OF_FREE_MEMORY * free_bytes))
    block = library.malloc(ctypes.c_size_t(size_bytes)) if size_bytes >= mmap.PAGESIZE else None
    if block is None:
        return
    begin = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
    whole_pages = (block + size_bytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    # One fault per 2 MiB instead of per 4 KiB; whole pages only, since the block need not begin on one.
    library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(whole_pages), getattr(mmap, "MADV_HUGEPAGE", 14))
    ctypes.memset(block, 0, size_bytes)
    library.free(ctypes.c_void_p(block))


def on_kept_heap() -> bool:
    """True if the calling thread takes its blocks from the heap that is kept, or the C library is not glibc.

    Arenas of threads that ran before `keep_heap` remain, and glibc deals them out to new threads in turn. A thread with
    one of these maps every large block anew.
    """
    library = _glibc()
    block = None if library is None else library.malloc(ctypes.c_size_t(_UNCACHED_BYTES))
    if block is None:
        return True
    header = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
    library.free(ctypes.c_void_p(block))
    return not header & _NON_MAIN_ARENA


def _configure(settings: dict[int, int]) -> bool:
    library = _glibc()
    if library is None:
        return False
    taken = [library.mallopt(name, value) for name, value in settings.items()]
    return all(taken)


@functools.cache
def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        library.malloc.restype = ctypes.c_void_p
        return library if library.gnu_get_libc_version else None
    except (OSError, AttributeError):
        return None


_CPU_INFO = Path("/proc/cpuinfo")


class CpuDevice(RuntimeDevice):
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
        super().__init__(f"cpu:{index}", CORE, worker=Worker(f"cpu:{index}", self._prepare, on_kept_heap))
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
