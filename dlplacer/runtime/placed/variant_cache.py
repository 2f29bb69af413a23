"""The variants of a placed module: the last ones used, each made once."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

MOST_VARIANTS = 16
"""An input pipeline that pads to a few lengths, in both modes, fits; a variant of 2,000 ops takes about 10 MB."""

_making = threading.RLock()


class VariantCache(Generic[K, T]):
    """Key → variant, for any number of threads; the one used longest ago makes room."""

    def __init__(self, most: int = MOST_VARIANTS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[K, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def values(self) -> list[T]:
        """The variants, the one used longest ago first."""
        with self._lock:
            return list(self._found.values())

    def used(self, key: K) -> T | None:
        """The variant of a key if it is there; it counts as used."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def get(self, key: K, make: Callable[[], T]) -> T:
        """The variant of a key; made by the first thread that asks, while the others wait for it."""
        found = self.used(key)
        if found is not None:
            return found
        # One at a time in the whole process: Dynamo traces with global state.
        with _making:
            found = self.used(key)
            if found is None:
                found = make()
                self.put(key, found)
            return found

    def put(self, key: K, variant: T) -> None:
        """Add a variant."""
        with self._lock:
            self._found[key] = variant
            while len(self._found) > self._most:
                self._found.popitem(last=False)

    def drop(self, unwanted: Callable[[K], bool]) -> None:
        """Remove the variants of some keys."""
        with self._lock:
            for key in [key for key in self._found if unwanted(key)]:
                del self._found[key]
