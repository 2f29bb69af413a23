"""Texts by which a checkpoint knows its training and its goal again: equal from run to run, other for other values."""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

_LAMBDA = "<lambda>"
_DIGITS = 8
_DEEPEST = 3
"""Callables within callables: a function may close over itself."""


def identity(called: Callable[..., Any], with_numbers: bool = False) -> str:
    """Module and name of a callable, with what it was made with.

    That are the values that it closes over or is bound to, the arguments of a partial one, and the plain attributes of
    an object; the ``name`` of one that has it stands for all of these. A lambda is told from others by its code.

    Parameters
    ----------
    with_numbers
        Whether the numbers in its code, its defaults, and the global numbers that it reads belong to it too.
    """
    return _identity(called, with_numbers, 0)


def _identity(called: Callable[..., Any], with_numbers: bool, depth: int) -> str:
    return ", ".join([_name(called), *dict.fromkeys(_values(called, with_numbers, depth))])


def _name(called: Callable[..., Any]) -> str:
    own = called.func if isinstance(called, partial) else called
    described = getattr(own, "name", None) or getattr(own, "__qualname__", type(own).__qualname__)
    module = getattr(own, "__module__", None) or type(own).__module__
    code = getattr(own, "__code__", None)
    if code is not None and _LAMBDA in str(described):
        described = f"{described} {hashlib.sha256(code.co_code).hexdigest()[:_DIGITS]}"
    return f"{module}:{described}"


def _values(called: Callable[..., Any], with_numbers: bool, depth: int) -> Iterator[str]:
    if isinstance(called, partial):
        yield from _values(called.func, with_numbers, depth)
        yield from _named({f"argument {place}": value for place, value in enumerate(called.args)}, depth)
        yield from _named(called.keywords, depth)
    elif inspect.isfunction(called):
        yield from _of_function(called, with_numbers, depth)
    elif getattr(called, "name", None) is None:
        bound = getattr(called, "__self__", called)
        if not inspect.ismodule(bound) and bound is not called:
            yield from _named({"self": bound}, depth)
        yield from _named({} if inspect.ismodule(bound) else getattr(bound, "__dict__", {}), depth)
        if inspect.ismethod(called):
            yield from _values(called.__func__, with_numbers, depth)


def _of_function(function: Any, with_numbers: bool, depth: int) -> Iterator[str]:
    try:
        inside = inspect.getclosurevars(function)
    except ValueError:  # A variable that it closes over has no value yet.
        return
    if with_numbers:
        yield from (str(each) for each in function.__code__.co_consts if _is_number(each))
        defaults = {name: each.default for name, each in inspect.signature(function).parameters.items()}
        read = {name: value for name, value in inside.globals.items() if _is_number(value)}
        yield from _named(defaults | read, depth)
    yield from _named(inside.nonlocals, depth)


def _named(values: Mapping[str, object], depth: int) -> Iterator[str]:
    return (f"{name}={text}" for name, value in sorted(values.items()) if (text := _shown(value, depth)))


def _shown(value: object, depth: int) -> str:
    """A plain value, or the identity of a callable; empty for others, whose texts may differ from run to run."""
    if _is_number(value) or isinstance(value, str):
        return repr(value)
    if depth == _DEEPEST or not (inspect.isroutine(value) or isinstance(value, partial)):
        return ""
    return _identity(value, True, depth + 1)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))
