"""Kernels in machine code: plain functions that numba compiles from their source and caches on disk.

A kernel works on integer tables and calls functions of this package only. Compiled, it is about a hundred times faster
than Python, but takes half a second to load or ten seconds to compile.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Event
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from dlplacer.solvers.instance.time_limit import ask_time, counts_work

_P = ParamSpec("_P")
_T = TypeVar("_T")

_WORTH_LOADING = 150
"""Ops × devices above which a schedule by rule justifies loading the machine code."""


def ask() -> None:
    """Check the deadline in a kernel run as Python, unless the clock counts work; machine code never checks it."""
    if not counts_work():
        ask_time()


def run(kernel: Callable[_P, _T], fast: bool, *arguments: _P.args, **named: _P.kwargs) -> _T:
    """Run a kernel and return its result; if `fast`, in machine code, while other threads can run."""
    if fast:
        return machine_code(kernel)(*arguments, **named)  # type: ignore[no-any-return]
    # Memory views yield Python integers, which are three times as fast as numpy's.
    return kernel(*map(_viewed, arguments), **named)


_kept = Event()
"""Set once this process knows that all kernels are compiled."""


def is_fast(size: int) -> bool:
    """True if kernels are compiled and the work, in ops × devices, justifies loading them."""
    return size > _WORTH_LOADING and is_kept()


def is_kept() -> bool:
    """True if all kernels are compiled, so that a first call takes a moment instead of seconds."""
    if not _kept.is_set() and _marker().exists():
        _kept.set()
    return _kept.is_set()


def keep() -> None:
    """Record that all kernels are compiled."""
    _kept.set()
    if _can_write():
        _marker().touch()


@cache
def _can_write() -> bool:
    try:
        _marker().parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(_marker().parent, os.W_OK)


@cache
def _marker() -> Path:
    """The file that marks all kernels as compiled, in a folder per version and place of installation.

    Numba checks a function's own file but not its callees' files, and finds no function compiled from another path.
    """
    folders = (Path(__file__).parents[1] / name for name in ("decode", "local_search"))
    files = sorted(file for folder in folders for file in folder.glob("*.py"))
    here = repr((__file__, version("numba"), sys.version))
    digest = hashlib.sha256(b"".join([*(file.read_bytes() for file in files), here.encode()])).hexdigest()[:16]
    cached = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return cached / "dlplacer" / digest / "compiled"


@cache
def machine_code(kernel: Callable[_P, _T], inner: bool = False) -> Callable[_P, _T]:
    """A kernel in machine code, which allocates nothing and releases the interpreter lock.

    An inner kernel is called by machine code only, and is compiled and cached with its callers.
    """
    import numba

    assert isinstance(kernel, FunctionType)
    names = dict(kernel.__globals__)
    for name in kernel.__code__.co_names:
        called = names.get(name)
        if isinstance(called, FunctionType) and called.__module__.startswith("dlplacer.solvers."):
            names[name] = machine_code(_never_ask if called is ask else called, inner=True)
    copy = FunctionType(kernel.__code__, names, kernel.__name__, kernel.__defaults__)
    njit: Any = numba.njit  # its type stubs lack some options
    settings: Any = numba.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(_marker().parent)
    try:
        # Without NRT: counting references to the tables' arrays at each call would take half of a run.
        compiled = njit(cache=not inner and _can_write(), nogil=True, error_model="numpy", _nrt=False)(copy)
    finally:
        settings.CACHE_DIR = before
    return compiled  # type: ignore[no-any-return]


def _viewed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.data if value.size else value
    return type(value)(*map(_viewed, value)) if isinstance(value, tuple) else value


def _never_ask() -> None:
    return
