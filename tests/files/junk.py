"""Junk put anywhere into a file's value, and what a reader may answer."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from dlplacer.core.errors import FileFormatError

Read = TypeVar("Read")

_JUNK = [
    None,
    True,
    -1,
    0,
    1.5,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "a",
    "\ud800",
    "5 GB",
    [],
    [1],
    {},
    {"id": "a"},
]
_FOREIGN = ("pydantic", "Traceback", "validation error", "Error", "https:", "function-", "<number>", "\n\n")


def spoiled(value: Any, seed: int) -> Any:
    """A copy of a value with one to three of its entries, at any depth, replaced by junk or removed."""
    random = Random(seed)
    value = copy.deepcopy(value)
    for _ in range(random.randint(1, 3)):
        container, key = random.choice(_places(value))
        if random.random() < 0.8:
            container[key] = random.choice(_JUNK)
        else:
            del container[key]
    return value


def read_or_refused(read: Callable[[], Read]) -> Read | None:
    """What is read, or None if it is refused in plain words; any other answer fails the test."""
    try:
        return read()
    except FileFormatError as error:
        refusal = error
    for mistake in refusal.mistakes:
        path, _, text = mistake.partition(": ")
        assert path
        assert text
    assert [word for word in _FOREIGN if word in str(refusal)] == []
    return None


def _places(value: Any) -> list[tuple[Any, Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, entry in entries for place in [(value, key), *_places(entry)]]
