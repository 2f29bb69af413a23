"""Kernels in machine code: plain functions, compiled by numba from their own source, and kept for the next process.

A kernel works on tables of integers and calls functions of this package only. Compiled, it takes a hundredth of the
time of Python, after half a second to load it, or ten seconds to compile it.
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
"""Ops × devices from which a schedule by rule is worth the loading of its code."""


def ask() -> None:
    """For kernels: as Python they end when time is up, unless the clock counts work, which machine code would go on."""
    if not counts_work():
        ask_time()


def run(kernel: Callable[_P, _T], fast: bool, *arguments: _P.args, **named: _P.kwargs) -> _T:
    """The result of a kernel, in machine code if `fast`: then other threads run meanwhile."""
    if fast:
        return machine_code(kernel)(*arguments, **named)  # type: ignore[no-any-return]
    # Elements of memory views are integers of Python, with which it counts three times as fast as with numpy's.
    return kernel(*map(_viewed, arguments), **named)


_kept = Event()
"""Set once this process knows that all kernels are compiled."""


def is_fast(size: int) -> bool:
    """True if machine code is kept and there is much to do: so many ops × devices."""
    return size > _WORTH_LOADING and is_kept()


def is_kept() -> bool:
    """True if kernels need not be compiled any more, so that a first call takes a moment instead of seconds."""
    if not _kept.is_set() and _marker().exists():
        _kept.set()
    return _kept.is_set()


def keep() -> None:
    """Note that all kernels are compiled."""
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
    """The file that says that all kernels are compiled, in the folder of this version's machine code.

    A folder for each version: numba asks whether a function's own file has changed, not whether those that it calls
    have; and for each place where it is installed, as numba looks up no function that was compiled from another path.
    """
    folders = (Path(__file__).parents[1] / name for name in ("decode", "local_search"))
    files = sorted(file for folder in folders for file in folder.glob("*.py"))
    here = repr((__file__, version("numba"), sys.version))
    digest = hashlib.sha256(b"".join([*(file.read_bytes() for file in files), here.encode()])).hexdigest()[:16]
    cached = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return cached / "dlplacer" / digest / "compiled"


@cache
def machine_code(kernel: Callable[_P, _T], inner: bool = False) -> Callable[_P, _T]:
    """A kernel in machine code, which allocates nothing and leaves the interpreter's lock to others.

    An inner one is called by machine code only, and compiled and kept with its callers.
    """
    import numba

    assert isinstance(kernel, FunctionType)
    names = dict(kernel.__globals__)
    for name in kernel.__code__.co_names:
        called = names.get(name)
        if isinstance(called, FunctionType) and called.__module__.startswith("dlplacer.solvers."):
            names[name] = machine_code(_never_ask if called is ask else called, inner=True)
    copy = FunctionType(kernel.__code__, names, kernel.__name__, kernel.__defaults__)
    njit: Any = numba.njit  # its types do not know all options
    settings: Any = numba.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(_marker().parent)
    try:
        # Counting the references to the two dozen arrays of their tables at each call takes half of a run.
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
