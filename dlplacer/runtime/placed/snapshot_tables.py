"""Where a traced step may have read values besides tensors: the tables that a snapshot of a module compares."""

import copy
import dataclasses
import functools
import inspect
import io
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from dlplacer.frontend.torch.tracing.hooks import global_hooks
from dlplacer.runtime.placed.live_values import ArrayContents, FunctionValues, called_methods, is_foreign

TENSOR_TABLES = ("_parameters", "_buffers")
_MUTABLE = (dict, list, set, deque)
_LEAVES = (str, bytes, int, float, complex, type(None), type, ModuleType, torch.Tensor)
_AT_WORK = (nn.Module, logging.Logger, io.IOBase)
"""An object that refers to one of these, as a trainer does, is no data: what is in it changes with every step."""
_DEPTH = 6
"""Of containers and configuration objects in one another."""
_MOST_PARTS = 2000
"""Of a container or an object: longer ones are data sets and vocabularies, not configurations."""

_MOST_BYTES = 2**20
"""Of an array: its elements are read again with every step."""

Table = tuple[str, Any, Any]
"""Name, what is compared, and a shallow copy of it as it is now: what is in it has a table of its own."""


def tables_of(modules: Iterable[tuple[str, nn.Module]], owners: Mapping[str, Any]) -> list[Table]:
    """The tables of modules, of their classes, of other objects, and of the hooks that are called for every module.

    Attributes are followed through containers and through objects that are data: made of numbers, texts, tensors,
    containers and such objects. Of other objects the attributes themselves are compared, and nothing in them. Functions
    are followed to the variables outside that they read, and to what these hold: a loss, and the forward passes.

    Parameters
    ----------
    modules, owners
        Name → module, name → object that is no module.
    """
    named, found = [*modules], _Found()
    for path, module in named:
        found.add(path, vars(module))
        for name, value in vars(module).items():
            if name not in TENSOR_TABLES:
                found.follow(joined(path, name), value, _DEPTH, direct=True)
    for path, owner in owners.items():
        found.follow(path, owner, _DEPTH, direct=True)
    for kind in dict.fromkeys(base for _, module in named for base in type(module).__mro__):
        if kind not in (nn.Module, object):
            found.add(f"class {kind.__name__}", vars(kind))
    for kind in dict.fromkeys(type(module) for _, module in named):
        for name, function in called_methods(kind).items():
            found.follow(f"{kind.__name__}.{name}", function, _DEPTH)
    for name, hooks in global_hooks().items():
        found.add(name, hooks)
    return found.tables


def joined(path: str, name: str) -> str:
    """The dotted name of what a path has under a name."""
    return f"{path}.{name}" if path and name else path or name


class _Found:
    """Tables, each once: modules may share a configuration object, or be there under two names."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self._seen: set[int] = set()

    def add(self, path: str, live: Any) -> None:
        if id(live) not in self._seen:
            self._seen.add(id(live))
            self.tables.append((path, live, dict(live) if isinstance(live, Mapping) else copy.copy(live)))

    def follow(self, path: str, value: Any, depth: int, *, direct: bool = False) -> None:
        """Add what can be edited in the value of an attribute or of a variable."""
        value = inspect.unwrap(value) if isinstance(value, FunctionType) else value
        live = _editable(value)
        # A view of a value is another object each time.
        known = id(value) if isinstance(live, (FunctionValues, ArrayContents)) else id(live)
        if live is not None and known in self._seen:
            return
        follows = isinstance(value, (*_MUTABLE, tuple, FunctionType)) or _is_data(value, depth, set())
        if live is not None and (direct or follows):
            self.add(path, live)
            self._seen.add(known)
        if follows and depth:
            for name, inner in _parts(value):
                self.follow(joined(path, name), inner, depth - 1)


def _is_data(value: Any, depth: int, seen: set[int]) -> bool:
    """Whether a value is made of numbers, texts, tensors, containers and objects of these."""
    if isinstance(value, _AT_WORK):
        return False
    if id(value) in seen or not depth or isinstance(value, FunctionType):
        return True
    seen.add(id(value))
    return len(seen) <= _MOST_PARTS and all(_is_data(inner, depth - 1, seen) for _, inner in _parts(value))


def _editable(value: Any) -> Any:
    """What of a value can be compared with a copy of itself; None if nothing in it can be edited."""
    if isinstance(value, _MUTABLE):
        return value
    if isinstance(value, (*_LEAVES, *_AT_WORK)):
        return None
    if isinstance(value, FunctionType):
        return None if is_foreign(value) else FunctionValues(value) or None
    if isinstance(value, np.ndarray):
        return ArrayContents(value) if value.nbytes <= _MOST_BYTES else None
    if hasattr(value, "__dict__"):
        return vars(value)
    if dataclasses.is_dataclass(value) and copy.copy(value) == value:  # with slots
        return value
    return None


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What a value refers to that may be edited without it, by name."""
    found: Iterable[tuple[Any, Any]]
    if isinstance(value, (*_LEAVES, *_AT_WORK)):
        return []
    if isinstance(value, dict):
        found = value.items()
    elif isinstance(value, (list, tuple, deque)):
        found = enumerate(value)
    elif isinstance(value, functools.partial):
        found = [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    elif isinstance(value, MethodType):
        found = [("__self__", value.__self__), ("", value.__func__)]
    elif isinstance(value, FunctionType):
        found = _read_by(value)
    elif hasattr(value, "__dict__"):
        found = vars(value).items()
    elif dataclasses.is_dataclass(value):
        found = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    else:
        return []
    return [(str(name), inner) for name, inner in [*found][:_MOST_PARTS] if not isinstance(inner, _LEAVES)]


def _read_by(function: FunctionType) -> list[tuple[str, Any]]:
    """What a function reads that may be edited; of functions those of its own closure and of its own module."""
    if is_foreign(function):
        return []
    values, found = FunctionValues(function), list[tuple[str, Any]]()
    for name, value in values.items():
        if isinstance(value, FunctionType):
            wanted = values.closes_over(name) or value.__module__ == function.__module__
        else:
            wanted = not isinstance(value, _MUTABLE) or len(value) <= _MOST_PARTS
        if wanted:
            found.append((name, value))
    return found
