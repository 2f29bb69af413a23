"""The C heap, told to keep freed memory while a core is a device, and grown before the first step.

With glibc's defaults every large tensor is mapped and unmapped, and the page faults of two threads slow each other.
"""

import ctypes
import functools
import mmap
import os
import sys
import threading
from typing import Any

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
