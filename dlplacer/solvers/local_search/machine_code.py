"""Functions in machine code, compiled once for all on a machine."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba

from dlplacer.solvers.local_search.kept_code import code_folder

_P = ParamSpec("_P")
_T = TypeVar("_T")


def compiled(kernel: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function in machine code that leaves the interpreter's lock to others."""
    options = partial(numba.njit, nogil=True, error_model="numpy")
    folder = code_folder()
    if folder is None:
        return cast("Callable[_P, _T]", options()(kernel))
    with _kept_in(folder):
        return cast("Callable[_P, _T]", options(cache=True)(kernel))


def inner(kernel: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that only others in machine code call: it is compiled and kept with them."""
    return cast("Callable[_P, _T]", numba.njit(nogil=True, error_model="numpy")(kernel))


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
