"""Functions in machine code, compiled once for all on a machine."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba

from dlplacer.solvers.local_search.kept_code import code_folder

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Numba's types know neither the private options below nor `unliteral`.
_njit: Any = numba.njit
_plain: Any = numba.types.unliteral

_OPTIONS: Mapping[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    # Kernels allocate nothing. Counting the references to the two dozen arrays of their tables at each call took more
    # than half of a run: 170,000 trials a second without, 50,000 with.
    "_nrt": False,
    # Each wrapper takes both tables apart and compiles for as long as a small function.
    "no_cfunc_wrapper": True,
}


def compiled(kernel: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function in machine code that leaves the interpreter's lock to others, and allocates nothing."""
    folder = code_folder()
    if folder is None:
        return _of_plain_types(_njit(**_OPTIONS)(kernel))
    with _kept_in(folder):
        return _of_plain_types(_njit(cache=True, **_OPTIONS)(kernel))


def inner(kernel: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that only others in machine code call: it is compiled and kept with them."""
    return _of_plain_types(_njit(no_cpython_wrapper=True, **_OPTIONS)(kernel))


def _of_plain_types(dispatcher: Any) -> Callable[_P, _T]:
    """Have machine code call a function with the types of its arguments, not with the values of those that are known.

    Else numba compiles it for every known integer, also for those that a variable holds only before a loop.
    """
    if not hasattr(dispatcher, "get_call_template"):
        # With NUMBA_DISABLE_JIT, under which coverage and debuggers see kernels, the function itself comes back.
        return cast("Callable[_P, _T]", dispatcher)
    template_of = dispatcher.get_call_template

    def get_call_template(types: Sequence[Any], named: Mapping[str, Any]) -> Any:
        plain = {name: _plain(one) for name, one in named.items()}
        return template_of([_plain(one) for one in types], plain)

    dispatcher.get_call_template = get_call_template
    return cast("Callable[_P, _T]", dispatcher)


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
