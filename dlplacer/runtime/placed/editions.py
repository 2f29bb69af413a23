"""The states that a placed module's module has been in: a step is captured once for each."""

import threading
import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from dlplacer.runtime.placed.module_snapshot import ModuleSnapshot

_MOST = 8
"""Training, evaluation, a few parts frozen in turn."""
_SUSPICIOUS = 16
"""New editions without a step in an old one: an attribute changes with every step, and every step is captured."""


class Editions:
    """Recognises the state that the modules are in, by a number for each; 0 is the state at `apply`."""

    def __init__(self, roots: Mapping[str, nn.Module], owners: Mapping[str, Any]) -> None:
        self._roots, self._owners = roots, owners
        self._lock = threading.Lock()
        self._known = [(0, ModuleSnapshot(roots, owners))]
        self._count = 1
        self._in_a_row = 0
        self._with_numbers = False

    def watch_numbers(self) -> None:
        """From now on, another number in an attribute that is a tensor is an edit: a step was captured with numbers."""
        if not self._with_numbers:
            with self._lock:
                self._with_numbers = True
                # What the tensors held in other states is not known any more.
                self._known = [(self._known[0][0], self._snapshot())]

    def current(self) -> tuple[int, ModuleSnapshot]:
        """Number and snapshot of the present state."""
        last = self._known[0]
        if last[1].holds():
            self._in_a_row = 0
            return last
        with self._lock:
            found = next((known for known in self._known if known[1].holds()), None)
            if found is None:
                found = self._new()
            else:
                self._in_a_row = 0
            self._known = [found, *(known for known in self._known if known is not found)][:_MOST]
            return found

    @property
    def last(self) -> tuple[int, ModuleSnapshot]:
        """What `current` found last."""
        return self._known[0]

    def is_known(self, number: object) -> bool:
        """Whether the state of this number can come again: its modules are still there."""
        return any(known == number for known, _ in self._known)

    def _new(self) -> tuple[int, ModuleSnapshot]:
        last = self._known[0][1]
        made = self._count, self._snapshot()
        self._count += 1
        self._in_a_row += 1
        if self._in_a_row == _SUSPICIOUS:
            edit = made[1].difference(last)
            warnings.warn(
                f"every call captures its step again, as the module was edited before each: {edit}; keep what changes "
                "with every step out of the module, or give it as an input",
                stacklevel=5,
            )
        # A sub-module that was swapped out is not kept alive for the case that it comes back.
        self._known = [known for known in self._known if known[1].same_modules(made[1])]
        return made

    def _snapshot(self) -> ModuleSnapshot:
        return ModuleSnapshot(self._roots, self._owners, with_numbers=self._with_numbers)
