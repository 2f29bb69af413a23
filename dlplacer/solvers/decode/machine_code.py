"""Kernels in machine code: plain functions, compiled from their own source where they have much to do, and kept.

A kernel works on tables of integers and calls functions of this package only. As Python it takes about as long as code
that is written for Python; compiled it takes a hundredth of that, after half a second to load it from where an earlier
process has kept it, or ten seconds to compile it.
"""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from dlplacer.solvers.instance.time_limit import ask_time, counts_work

_P = ParamSpec("_P")
_T = TypeVar("_T")
Kernel = Callable[..., Any]

_OPTIONS: Mapping[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    # Kernels allocate nothing. Counting the references to the two dozen arrays of their tables at each call took more
    # than half of a run: 170,000 trials a second without, 50,000 with.
    "_nrt": False,
    # Each wrapper takes both tables apart and compiles for as long as a small function.
    "no_cfunc_wrapper": True,
}

_WORTH_LOADING = 150
"""Ops × devices from which a schedule by rule is worth the loading of its code."""
_UNUSED_S = 30 * 86400.0
"""Code of other versions that nobody has used for so long makes room."""
_ROOM = "dlplacer.solvers."

_made: dict[tuple[Kernel, bool], Any] = {}
_kept: set[Kernel] = set()
_lock = RLock()


def ask() -> None:
    """For kernels: as Python they end when time is up, unless the clock counts work, which machine code would go on."""
    if not counts_work():
        ask_time()


def run(kernel: Callable[_P, _T], fast: bool, *arguments: _P.args, **named: _P.kwargs) -> _T:
    """The result of a kernel, in machine code if `fast`: then other threads run meanwhile."""
    if fast:
        return machine_code(kernel)(*arguments, **named)
    # Elements of memory views are integers of Python, with which it counts three times as fast as with numpy's.
    return kernel(*map(_viewed, arguments), **named)


def is_fast(size: int, kernels: Collection[Kernel]) -> bool:
    """True if machine code is kept and worth its loading, as there is much to do or most of that is done.

    Parameters
    ----------
    size
        Ops × devices.
    """
    made = all((kernel, False) in _made and _made[kernel, False].signatures for kernel in kernels)
    return made or (size > _WORTH_LOADING and _is_kept(kernels))


def is_kept(kernels: Collection[Kernel]) -> bool:
    """True if kernels need not be compiled any more, so that a first call takes a moment instead of seconds.

    Where the clock counts work it is always True: what is searched must not hang on what an earlier process has kept.
    """
    return counts_work() or _is_kept(kernels)


def _is_kept(kernels: Collection[Kernel]) -> bool:
    folder = code_folder()
    for kernel in kernels:
        # Numba writes the index of a function last, when it has been compiled.
        name = f"*/{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}-*.nbi"
        if kernel not in _kept and folder is not None and any(folder.glob(name)):
            _kept.add(kernel)
    return _kept.issuperset(kernels)


def machine_code(kernel: Callable[_P, _T], inner: bool = False) -> Callable[_P, _T]:
    """A kernel in machine code, which allocates nothing and leaves the interpreter's lock to others.

    Parameters
    ----------
    inner
        Whether only machine code calls it: then it is compiled and kept with what calls it.
    """
    assert isinstance(kernel, FunctionType)
    with _lock:
        made = _made.get((kernel, False)) or _made.get((kernel, inner))
        if made is None:
            made = _made[kernel, inner] = _compiled(_calling_machine_code(kernel), inner)
        return made  # type: ignore[no-any-return]


@cache
def code_folder() -> Path | None:
    """The folder of this version's machine code; None if there can be none.

    A folder for each version: numba asks whether a function's own file has changed, not whether those that it calls
    have. And for each place where it is installed: numba looks no function up that was compiled from another path. It
    tells processors apart by itself.
    """
    files = sorted(
        file for name in ("decode", "local_search") for file in Path(__file__).parents[1].glob(f"{name}/*.py")
    )
    here = repr((__file__, version("numba"), sys.version))
    digest = hashlib.sha256(b"".join([*(file.read_bytes() for file in files), here.encode()])).hexdigest()[:16]
    try:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlplacer"
        folder = parent / digest
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for other in parent.iterdir():
            if other.is_dir() and time.time() - other.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


def _viewed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.data if value.size else value
    return type(value)(*map(_viewed, value)) if isinstance(value, tuple) else value


def _calling_machine_code(kernel: FunctionType) -> FunctionType:
    """The same function, which calls others in machine code, and does not look at the clock."""
    names = dict(kernel.__globals__)
    for name in kernel.__code__.co_names:
        called = names.get(name)
        if called is ask:
            names[name] = machine_code(_nothing, inner=True)
        elif isinstance(called, FunctionType) and called.__module__.startswith(_ROOM):
            names[name] = machine_code(called, inner=True)
    return FunctionType(kernel.__code__, names, kernel.__name__, kernel.__defaults__)


def _nothing() -> None:
    return


def _compiled(kernel: FunctionType, inner: bool) -> Any:
    import numba

    unliteral: Any = numba.types.unliteral
    settings: Any = numba.config
    folder = None if inner else code_folder()
    before = settings.CACHE_DIR
    if folder is not None:
        settings.CACHE_DIR = str(folder)
    try:
        njit: Any = numba.njit  # its types do not know all options
        dispatcher = njit(cache=folder is not None, no_cpython_wrapper=inner, **_OPTIONS)(kernel)
    finally:
        settings.CACHE_DIR = before
    template_of, plain = dispatcher.get_call_template, unliteral

    def get_call_template(types: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """With types of arguments, not with the values of those that are known: numba would compile it for each."""
        return template_of([plain(one) for one in types], {name: plain(one) for name, one in named.items()})

    dispatcher.get_call_template = get_call_template
    return dispatcher
