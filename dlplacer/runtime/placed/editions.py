"""The states that a placed module's module has been in: a step is captured once for each."""

import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import nn

from dlplacer.frontend.torch.tracing.hooks import global_hooks

_MOST = 8
"""Training, evaluation, a few parts frozen in turn."""
_TENSOR_TABLES = ("_parameters", "_buffers")
Traits = tuple[torch.Size, tuple[int, ...], torch.dtype, bool]
"""Shape, strides, dtype and ``requires_grad`` of a tensor."""


class ModuleSnapshot:
    """Sub-modules with their classes and modes, hooks, and names and `Traits` of tensors, as they were.

    Every call of a placed module asks `holds`, so that is a few comparisons in C of lists laid out in advance.

    Parameters
    ----------
    roots
        Prefix of names → module, as for a job's module and its loss.

    `tensors`: parameters and buffers by name, a tied one under each of its names.
    """

    def __init__(self, roots: Mapping[str, nn.Module]) -> None:
        named = [(_joined(prefix, path), module) for prefix, root in roots.items() for path, module in _modules(root)]
        self._modules = [module for _, module in named]
        self._kinds = [*map(type, self._modules)]
        self._modes = self._training()
        tables: list[Mapping[Any, Any]] = [*chain.from_iterable(map(_tables, self._modules)), *global_hooks().values()]
        # Most are of hooks, a dozen for each module: whether all are empty still, `any` sees at once.
        self._empty = [table for table in tables if not table]
        self._live = [table for table in tables if table]
        self._copies = [dict(table) for table in self._live]
        self._tensor_tables = [vars(module)[table] for module in self._modules for table in _TENSOR_TABLES]
        self._tensor_names = [*chain.from_iterable(self._tensor_tables)]
        places = ((path, name) for path, module in named for table in _TENSOR_TABLES for name in vars(module)[table])
        self._full_names = [_joined(path, name) for path, name in places]
        found = self._found()
        self._adopt(found, [*map(id, found)])
        self._traits = _traits(found)
        self._ties = _ties(self._ids)

    def holds(self) -> bool:
        """True if everything is as it was."""
        same = not any(self._empty) and self._live == self._copies
        same = same and [*map(type, self._modules)] == self._kinds and self._training() == self._modes
        return same and self._tensors_hold()

    def same_modules(self, other: "ModuleSnapshot") -> bool:
        """True if two snapshots are of the same module objects."""
        return [*map(id, self._modules)] == [*map(id, other._modules)]

    @cached_property
    def trained(self) -> frozenset[str]:
        """Names of the tensors that require a gradient."""
        return frozenset(name for name, tensor in self.tensors.items() if tensor.requires_grad)

    def _training(self) -> list[bool]:
        return [module.training for module in self._modules]

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


class Editions:
    """Recognises the state that the modules are in, by a number for each; 0 is the state at `apply`."""

    def __init__(self, roots: Mapping[str, nn.Module]) -> None:
        self._roots = roots
        self._lock = threading.Lock()
        self._known = [(0, ModuleSnapshot(roots))]
        self._count = 1

    def current(self) -> tuple[int, ModuleSnapshot]:
        """Number and snapshot of the present state."""
        last = self._known[0]
        if last[1].holds():
            return last
        with self._lock:
            found = next((known for known in self._known if known[1].holds()), None) or self._new()
            self._known = [found, *(known for known in self._known if known is not found)][:_MOST]
            return found

    @property
    def last(self) -> tuple[int, ModuleSnapshot]:
        """What `current` found last."""
        return self._known[0]

    def is_known(self, number: object) -> bool:
        """True if the state of this number can come again: its modules are still there."""
        return any(known == number for known, _ in self._known)

    def forget(self) -> None:
        """Take the present state, and every one to come, for a new one."""
        with self._lock:
            self._known = []
            self._known = [self._new()]

    def _new(self) -> tuple[int, ModuleSnapshot]:
        made = self._count, ModuleSnapshot(self._roots)
        self._count += 1
        # A sub-module that was swapped out is not kept alive for the case that it comes back.
        self._known = [known for known in self._known if known[1].same_modules(made[1])]
        return made


def _tables(module: nn.Module) -> Iterator[Mapping[Any, Any]]:
    """The sub-modules of a module, and its hooks of every kind."""
    for name, value in vars(module).items():
        if name == "_modules" or ("_hooks" in name and isinstance(value, dict)):
            yield value


def _traits(found: list[torch.Tensor | None]) -> list[Traits | None]:
    return [None if one is None else (one.shape, one.stride(), one.dtype, one.requires_grad) for one in found]


def _ties(ids: list[int]) -> list[int]:
    first: dict[int, int] = {}
    return [first.setdefault(one, position) for position, one in enumerate(ids)]


def _modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As `named_parameters` goes over them: a module under each of its names."""
    yield from root.named_modules(remove_duplicate=False)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
