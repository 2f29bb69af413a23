"""The C heap, told to keep what it has.

With glibc's defaults every large tensor is mapped and unmapped, and the page faults of two threads slow each other down;
a heap that keeps its memory removes that (two training steps side by side: 4.0 s against 2.8 s).
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8
_TOP_PAD_BYTES = 64 * 2**20
_NEVER = 2**31 - 1

_kept: list[bool] = []


def keep_heap() -> bool:
    """Tell glibc to serve large blocks from one heap and to keep freed memory; whether it could be told.

    Calls after the first do nothing. On other C libraries nothing changes.
    """
    if not _kept:
        _kept.append(sys.platform == "linux" and _tell_glibc())
    return _kept[0]


def _tell_glibc() -> bool:
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = {
        _M_MMAP_MAX: 0,
        _M_TRIM_THRESHOLD: _NEVER,
        _M_TOP_PAD: _TOP_PAD_BYTES,
        _M_ARENA_MAX: 1,
    }
    return all([mallopt(name, value) for name, value in settings.items()])
