"""Functions in machine code, compiled once for all on a machine."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba

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


@cache
def _folder() -> Path | None:
    """Where this version of the code is kept in machine code; None if it cannot be.

    A folder for each version: numba asks whether a function's own file has changed, not whether the columns that it
    imports have, and stumbles over a class that is there no more.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
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
