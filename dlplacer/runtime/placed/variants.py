"""The compiled steps of a placed module, by the guards of a call: the state of its modules, and its inputs."""

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.job import Job, is_flat
from dlplacer.frontend.torch.tracing.hooks import GLOBAL_HOOKS
from dlplacer.runtime.placed.variant import Variant

MOST_VARIANTS = 16
"""An input pipeline that pads to a few lengths, in both modes, fits; a variant of 2,000 ops takes about 10 MB."""
_TENSOR_TABLES = ("_parameters", "_buffers")
_making = threading.RLock()
"""Held while a step is captured, one in the whole process: Dynamo has global state, and modules hold stand-ins then."""


class ModuleSnapshot:
    """Sub-modules with their classes and modes, hooks, and tensors with their traits, as they were.

    Every call of a placed module asks `holds`, so that is a few comparisons in C of lists laid out in advance. `roots`:
    prefix of names → module, as for a job's module and its loss. `tensors`: parameters and buffers by name, a tied one
    under each of its names. `is_first`: whether it is of the modules as the plan was applied.
    """

    def __init__(self, roots: Mapping[str, nn.Module], is_first: bool = False) -> None:
        self.is_first = is_first
        # As `named_parameters` goes over them: a module under each of its names.
        named = [
            (_joined(prefix, path), module)
            for prefix, root in roots.items()
            for path, module in root.named_modules(remove_duplicate=False)
        ]
        self.modules = [module for _, module in named]
        self._kinds = [*map(type, self.modules)]
        self._modes = self._training()
        tables: list[Mapping[Any, Any]] = [*chain.from_iterable(map(_tables, self.modules)), *GLOBAL_HOOKS]
        # Most are of hooks, a dozen for each module: whether all are empty still, `any` sees at once.
        self._empty = [table for table in tables if not table]
        self._live = [table for table in tables if table]
        self._copies = [dict(table) for table in self._live]
        self._tensor_tables = [vars(module)[table] for module in self.modules for table in _TENSOR_TABLES]
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
        same = same and [*map(type, self.modules)] == self._kinds and self._training() == self._modes
        return same and self._tensors_hold()

    def _training(self) -> list[bool]:
        return [module.training for module in self.modules]

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


class Variants:
    """Finds the variant for a call, or makes it; the one used longest ago makes room.

    `make` captures a step at the inputs of a job, in the present state of the modules, and compiles it.
    """

    def __init__(self, roots: Mapping[str, nn.Module], make: Callable[[Job, ModuleSnapshot], Variant]) -> None:
        self._roots, self._make = roots, make
        self._found: OrderedDict[tuple[ModuleSnapshot, Hashable], Variant] = OrderedDict()
        self._latest = ModuleSnapshot(roots, is_first=True)

    def state(self) -> ModuleSnapshot:
        """The snapshot that holds now."""
        with _making:
            if not self._latest.holds():
                known = dict.fromkeys(state for state, _ in reversed(self._found))
                latest = next((state for state in known if state.holds()), None)
                if latest is None:
                    latest = ModuleSnapshot(self._roots)
                    # A sub-module that was swapped out is not kept alive for the case that it comes back.
                    for key in [key for key in self._found if [*map(id, key[0].modules)] != [*map(id, latest.modules)]]:
                        del self._found[key]
                self._latest = latest
            return self._latest

    def add(self, job: Job, variant: Variant, state: ModuleSnapshot) -> None:
        """Use a variant for the inputs of a job in a state of the modules."""
        with _making:
            self._found[state, step_key(job)] = variant
            while len(self._found) > MOST_VARIANTS:
                self._found.popitem(last=False)

    def find(self, job: Job) -> tuple[Variant, Mapping[str, torch.Tensor]]:
        """The variant for the inputs of a job, and the tensors of the modules by name.

        It is made by the first thread that asks, while the others wait for it.
        """
        with _making:
            state = self.state()
            key = state, step_key(job)
            if key in self._found:
                self._found.move_to_end(key)
            else:
                self.add(job, self._make(job, state), state)
            return self._found[key], state.tensors

    def forget(self) -> None:
        """Take the present state, and every one to come, for a new one."""
        with _making:
            self._found.clear()
            self._latest = ModuleSnapshot(self._roots)


def step_key(job: Job) -> Hashable:
    """Mode, shapes, other values and nesting of the inputs."""
    targets = job.targets if job.mode == "train" else ()
    if not job.kwargs and is_flat(job.args) and is_flat(targets):
        return job.mode, tuple([tuple(leaf.shape) for leaf in (*job.args, *targets)]), len(targets)
    leaves, nesting = pytree.tree_flatten((job.args, dict(job.kwargs), targets))
    return job.mode, tuple(map(_described, leaves)), repr(nesting)


def _described(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape)
    # By bits: NaN is not equal to itself, 0.0 is equal to -0.0, and 1 to 1.0 and to True.
    return type(leaf).__name__, struct.pack("d", leaf) if isinstance(leaf, float) else leaf


def _tables(module: nn.Module) -> Iterator[Mapping[Any, Any]]:
    """The sub-modules of a module, and its hooks of every kind."""
    for name, value in vars(module).items():
        if name == "_modules" or ("_hooks" in name and isinstance(value, dict)):
            yield value


def _traits(found: list[torch.Tensor | None]) -> list[object]:
    return [None if one is None else (one.shape, one.stride(), one.dtype, one.requires_grad) for one in found]


def _ties(ids: list[int]) -> list[int]:
    first: dict[int, int] = {}
    return [first.setdefault(one, position) for position, one in enumerate(ids)]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
