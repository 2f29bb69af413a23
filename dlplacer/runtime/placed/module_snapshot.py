"""What a traced step took from its module besides the values of tensors: how an edit after `apply` is seen."""

import reprlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

_TENSOR_TABLES = ("_parameters", "_buffers")
Traits = tuple[torch.Size, torch.dtype, bool]
"""Shape, dtype and ``requires_grad`` of a tensor."""
_NO_STATE = (type, FunctionType, ModuleType, torch.Tensor, nn.Module)


class ModuleSnapshot:
    """Sub-modules, attributes, hooks, and names, shapes, dtypes and ``requires_grad`` of tensors, as they were.

    Attributes are compared by value; lists, sets, dicts and plain objects in them one level deep. A call of a placed
    module asks `holds` every time, so that is a few comparisons in C of lists that were laid out in advance.

    Parameters
    ----------
    roots
        Prefix of names → module, as for a job's module and its loss.

    Attributes
    ----------
    tensors
        Parameters and buffers by name, a tied one under each of its names.
    """

    def __init__(self, roots: Mapping[str, nn.Module]) -> None:
        named = [(_joined(prefix, path), module) for prefix, root in roots.items() for path, module in _modules(root)]
        self._paths = [path for path, _ in named]
        self._modules = [module for _, module in named]
        self._kinds = [*map(type, self._modules)]
        tables = _distinct(table for path, module in named for table in _tables(path, module))
        self._names = [name for name, _ in tables]
        self._live = [table for _, table in tables]
        self._copies = [table.copy() for table in self._live]
        self._tensor_tables = [vars(module)[table] for module in self._modules for table in _TENSOR_TABLES]
        self._tensor_names = [*chain.from_iterable(self._tensor_tables)]
        owners = ((path, name) for path, module in named for table in _TENSOR_TABLES for name in vars(module)[table])
        self._full_names = [_joined(path, name) for path, name in owners]
        found = self._found()
        self._adopt(found, [*map(id, found)])
        self._traits = _traits(found)
        self._ties = _ties(self._ids)

    @property
    def _kinds_by_path(self) -> list[tuple[str, type]]:
        return [*zip(self._paths, self._kinds, strict=True)]

    def holds(self) -> bool:
        """Whether everything is as it was."""
        try:
            same = self._live == self._copies and [*map(type, self._modules)] == self._kinds
        except Exception:  # a comparison of arrays has no truth value: something was replaced
            return False
        return same and self._tensors_hold()

    def same_modules(self, other: "ModuleSnapshot") -> bool:
        """Whether two snapshots are of the same module objects."""
        return [*map(id, self._modules)] == [*map(id, other._modules)]

    def difference(self, older: "ModuleSnapshot") -> str:
        """What was edited between an older snapshot and this one: ``dropout.p: 0.1, now 0.5``."""
        mine, theirs = self._described(), older._described()
        for name in (*theirs, *mine):
            if name not in mine or name not in theirs:
                return f"{name} {'was added' if name in mine else 'was removed'}"
            if _differ(theirs[name], mine[name]):
                return f"{name}: {_shown(theirs[name])}, now {_shown(mine[name])}"
        return "a tensor that two modules share"

    @cached_property
    def trained(self) -> frozenset[str]:
        """Names of the tensors that require a gradient."""
        return frozenset(name for name, tensor in self.tensors.items() if tensor.requires_grad)

    def _described(self) -> dict[str, Any]:
        """Name → value, of all that is compared."""
        found: dict[str, Any] = {f"the type of {path or 'the module'}": kind for path, kind in self._kinds_by_path}
        for name, traits in zip(self._full_names, self._traits, strict=True):
            if traits is not None:
                found.update(zip((name, f"{name}.dtype", f"{name}.requires_grad"), traits, strict=True))
        for path, table in zip(self._names, self._copies, strict=True):
            entries = table.items() if isinstance(table, dict) else [("", table)]
            found.update({_joined(path, str(key)): value for key, value in entries if key not in _TENSOR_TABLES})
        return found

    def _tensors_hold(self) -> bool:
        if [*chain.from_iterable(self._tensor_tables)] != self._tensor_names:
            return False
        found = self._found()
        ids = [*map(id, found)]
        if _traits(found) != self._traits:
            return False
        if ids != self._ids:
            # Other objects alone are no edit: FSDP puts the gathered parameters in the place of their pieces.
            if _ties(ids) != self._ties:
                return False
            self._adopt(found, ids)
        return True

    def _found(self) -> list[torch.Tensor | None]:
        return [*chain.from_iterable(map(dict.values, self._tensor_tables))]

    def _adopt(self, found: list[torch.Tensor | None], ids: list[int]) -> None:
        self._ids = ids
        pairs = zip(self._full_names, found, strict=True)
        self.tensors: dict[str, torch.Tensor] = {name: tensor for name, tensor in pairs if tensor is not None}


def _traits(found: list[torch.Tensor | None]) -> list[Traits | None]:
    return [None if one is None else (one.shape, one.dtype, one.requires_grad) for one in found]


def _ties(ids: list[int]) -> list[int]:
    first: dict[int, int] = {}
    return [first.setdefault(one, position) for position, one in enumerate(ids)]


def _modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As `named_parameters` goes over them: a module under each of its names."""
    yield from root.named_modules(remove_duplicate=False)


def _tables(path: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The attributes of a module, and those of its attributes that hold several values themselves."""
    yield path, vars(module)
    for name, value in vars(module).items():
        if name in _TENSOR_TABLES:
            continue
        if isinstance(value, (dict, list, set)):
            yield _joined(path, name), value
        elif hasattr(value, "__dict__") and not isinstance(value, _NO_STATE):
            yield _joined(path, name), vars(value)


def _distinct(tables: Iterator[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Without those that come again: a configuration object that all modules share, a module under two names."""
    first: dict[int, tuple[str, Any]] = {}
    for path, table in tables:
        first.setdefault(id(table), (path, table))
    return list(first.values())


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _differ(one: Any, other: Any) -> bool:
    if one is other:
        return False
    try:
        return bool(one != other)
    except Exception:
        return True


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else reprlib.repr(value)
