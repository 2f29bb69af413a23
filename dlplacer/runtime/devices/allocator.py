"""The C heap, configured to keep freed memory, and grown before the first step.

With glibc's defaults every large tensor is mapped and unmapped, and the page faults of two threads slow each other
down (two training steps side by side: 4.0 s against 2.8 s alone). One heap that keeps its memory ends that once it has
grown, which takes several steps; reserving grows it at once.
"""

import ctypes
import functools
import mmap
import os
import sys
from typing import Any

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
# No block is mapped separately, nothing is returned at the top of the heap, it grows by 64 MiB at a time, and all
# threads share one arena, so that what is reserved once serves them all.
_SETTINGS = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_TOP_PAD: 64 * 2**20, _M_ARENA_MAX: 1}
# Other processes of the same run reserve at the same time; more than a quarter each could drive the machine into swap.
_SHARE_OF_FREE_MEMORY = 0.25

_UNCACHED_BYTES, _NON_MAIN_ARENA = 2**16, 4
"""More than threads keep for themselves; and the bit in the word ahead of a block (glibc, malloc.c: NON_MAIN_ARENA)."""


@functools.cache
def keep_heap() -> bool:
    """Make glibc serve all blocks from one heap and keep freed memory; returns whether it could be configured.

    Calls after the first do nothing. On other C libraries nothing changes.
    """
    library = _glibc()
    if library is None:
        return False
    taken = [library.mallopt(name, value) for name, value in _SETTINGS.items()]
    return all(taken)


def reserve_heap(size_bytes: int) -> None:
    """Grow the heap by a size and touch its pages, so that the steps that follow fault none in.

    At most a quarter of the memory that is free now is taken. Does nothing where the heap cannot be kept.
    """
    library = _glibc()
    if library is None or not keep_heap():
        return
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size_bytes = min(size_bytes, int(_SHARE_OF_FREE_MEMORY * free_bytes))
    if size_bytes < mmap.PAGESIZE:
        return
    library.malloc.restype = ctypes.c_void_p
    block = library.malloc(ctypes.c_size_t(size_bytes))
    if block is None:
        return
    begin = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
    whole_pages = (block + size_bytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    # One fault per 2 MiB instead of per 4 KiB; whole pages only, since the block need not begin on one.
    library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(whole_pages), getattr(mmap, "MADV_HUGEPAGE", 14))
    ctypes.memset(block, 0, size_bytes)
    library.free(ctypes.c_void_p(block))


def on_kept_heap() -> bool:
    """Whether the calling thread takes its blocks from the heap that is kept.

    Arenas of threads that ran before `keep_heap` remain, and glibc deals them out to new threads in turn. A thread with
    one of these maps every large block anew and faults in its pages: products of VGG-19's large layers then take three
    times as long. True on other C libraries.
    """
    library = _glibc()
    if library is None:
        return True
    library.malloc.restype = ctypes.c_void_p
    block = library.malloc(ctypes.c_size_t(_UNCACHED_BYTES))
    if block is None:
        return True
    header = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
    library.free(ctypes.c_void_p(block))
    return not header & _NON_MAIN_ARENA


@functools.cache
def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if library.gnu_get_libc_version else None
    except (OSError, AttributeError):
        return None
