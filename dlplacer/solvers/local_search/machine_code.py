"""Functions in machine code, compiled once for all on a machine."""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

_P = ParamSpec("_P")
_T = TypeVar("_T")


def compiled(kernel: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function in machine code that leaves the interpreter's lock to others."""
    options = partial(numba.njit, nogil=True, error_model="numpy")
    folder = _folder()
    if folder is None:
        return cast("Callable[_P, _T]", options()(kernel))
    with _kept_in(folder):
        return cast("Callable[_P, _T]", options(cache=True)(kernel))


def inlined(kernel: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that is compiled into its callers."""
    return cast("Callable[_P, _T]", numba.njit(nogil=True, error_model="numpy", inline="always")(kernel))


def is_kept(*names: str) -> bool:
    """Whether functions need not be compiled any more, so that a call takes a moment instead of seconds.

    Parameters
    ----------
    names
        Module and function, as in ``moves.anneal``.
    """
    folder = _folder()
    # Numba writes the index of a function last, when it has been compiled.
    return folder is not None and all(any(folder.glob(f"*/{name}-*.nbi")) for name in names)


@cache
def _folder() -> Path | None:
    """Where this version of the code is kept in machine code for this processor; None if it cannot be.

    A folder for each version: numba asks whether a function's own file has changed, not whether the columns that it
    imports have, and stumbles over a class that is there no more.
    """
    sources = [source.read_bytes() for source in sorted(Path(__file__).parent.glob("*.py"))]
    here = repr((numba.__version__, sys.version, get_host_cpu_name(), sorted(get_host_cpu_features().items())))
    digest = hashlib.sha256(b"".join([*sources, here.encode()])).hexdigest()[:16]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlplacer" / digest
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextlib.contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Have numba keep what is decorated meanwhile in a folder."""
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        settings.CACHE_DIR = before
