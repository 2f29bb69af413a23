"""What a traced step took from its module besides the values of tensors: how an edit after `apply` is seen."""

import reprlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from dlplacer.runtime.placed.guards import has_data
from dlplacer.runtime.placed.number_inputs import number_bits
from dlplacer.runtime.placed.snapshot_tables import TENSOR_TABLES, joined, tables_of

Traits = tuple[torch.Size, tuple[int, ...], torch.dtype, bool]
"""Shape, strides, dtype and ``requires_grad`` of a tensor."""
_TRAITS = ("", ".strides", ".dtype", ".requires_grad")


class ModuleSnapshot:
    """Sub-modules, classes, attributes, hooks, and names and `Traits` of tensors, as they were.

    Attributes are compared by value, tensors among them by identity: what is in a tensor, a step reads anew, unless its
    capture has read a number out of one. A call of a placed module asks `holds` every time, so that is a few
    comparisons in C of lists that were laid out in advance.

    Parameters
    ----------
    roots
        Prefix of names → module, as for a job's module and its loss.
    owners
        Prefix of names → object that is no module and decides what is traced, as a loss may be.
    with_numbers
        Whether attributes that are tensors of one element are compared by value too.

    Attributes
    ----------
    tensors
        Parameters and buffers by name, a tied one under each of its names.
    """

    def __init__(
        self,
        roots: Mapping[str, nn.Module],
        owners: Mapping[str, Any] = MappingProxyType({}),
        *,
        with_numbers: bool = False,
    ) -> None:
        named = [(joined(prefix, path), module) for prefix, root in roots.items() for path, module in _modules(root)]
        self._paths = [path for path, _ in named]
        self._modules = [module for _, module in named]
        self._kinds = [*map(type, self._modules)]
        tables = tables_of(named, owners)
        self._named_copies = [(name, copied) for name, _, copied in tables]
        # Most are of hooks, a dozen for each module: whether all are empty still, `any` sees at once.
        self._empty = [live for _, live, copied in tables if _is_empty(copied)]
        self._live = [live for _, live, copied in tables if not _is_empty(copied)]
        self._copies = [copied for _, _, copied in tables if not _is_empty(copied)]
        self._held = [*chain.from_iterable(map(_tensors_in, self._live, self._copies))]
        self._held_ids = _ids_at(self._held)
        self._number_readers = _readers(self._live)
        self._number_kinds = _kinds_at(self._number_readers)
        self._numbers = _numbers_at(self._held) if with_numbers else None
        self._tensor_tables = [vars(module)[table] for module in self._modules for table in TENSOR_TABLES]
        self._tensor_names = [*chain.from_iterable(self._tensor_tables)]
        places = ((path, name) for path, module in named for table in TENSOR_TABLES for name in vars(module)[table])
        self._full_names = [joined(path, name) for path, name in places]
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
            same = not any(self._empty) and self._live == self._copies
            same = same and [*map(type, self._modules)] == self._kinds
            same = same and _ids_at(self._held) == self._held_ids
            same = same and _kinds_at(self._number_readers) == self._number_kinds
            same = same and (self._numbers is None or _numbers_at(self._held) == self._numbers)
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
                found.update(zip((name + what for what in _TRAITS), traits, strict=True))
        for path, table in self._named_copies:
            entries = table.items() if isinstance(table, dict) else [("", table)]
            found.update({joined(path, str(key)): value for key, value in entries if key not in TENSOR_TABLES})
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
    return [None if one is None else (one.shape, one.stride(), one.dtype, one.requires_grad) for one in found]


def _ties(ids: list[int]) -> list[int]:
    first: dict[int, int] = {}
    return [first.setdefault(one, position) for position, one in enumerate(ids)]


def _modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As `named_parameters` goes over them: a module under each of its names."""
    yield from root.named_modules(remove_duplicate=False)


def _is_empty(table: Any) -> bool:
    return type(table) in (dict, OrderedDict, list, set) and not table


def _tensors_in(live: Any, copied: Any) -> list[tuple[Any, Any]]:
    """Where a table holds tensors or arrays: equal ones may be others."""
    entries = copied.items() if isinstance(copied, dict) else enumerate(copied) if isinstance(copied, list) else ()
    return [(live, key) for key, value in entries if isinstance(value, (torch.Tensor, np.ndarray))]


def _ids_at(places: list[tuple[Any, Any]]) -> list[int]:
    return [id(table[key]) for table, key in places]


def _readers(tables: list[Any]) -> list[tuple[Callable[[Any], Any], Any]]:
    """Each table that holds numbers, with what reads them all; two at least, as one alone would come without a tuple.

    Modes are left out: nobody sets one to 1, and there are as many as modules.
    """
    found: list[tuple[Callable[[Any], Any], Any]] = []
    for table in tables:
        entries = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
        keys = [key for key, value in entries if isinstance(value, (int, float)) and key != "training"]
        if keys:
            found.append((itemgetter(*keys, keys[0]), table))
    return found


def _kinds_at(readers: list[tuple[Callable[[Any], Any], Any]]) -> list[type]:
    """The types of the numbers in some tables: 1, 1.0 and True are equal."""
    return [*map(type, chain.from_iterable([read(table) for read, table in readers]))]


def _numbers_at(places: list[tuple[Any, Any]]) -> list[Hashable]:
    values = (table[key] for table, key in places)
    readable = (one for one in values if isinstance(one, torch.Tensor) and one.numel() == 1 and has_data(one))
    return [number_bits(one.item()) for one in readable]


def _differ(one: Any, other: Any) -> bool:
    if one is other:
        return False
    try:
        return type(one) is not type(other) or bool(one != other)
    except Exception:
        return True


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else reprlib.repr(value)
