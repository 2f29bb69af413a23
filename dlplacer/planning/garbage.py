"""Python's garbage collection while a problem is solved."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 50, 20)
"""Objects more than before ahead of a collection, and collections ahead of one of the next generation. By Python's own
(700, 10, 10) a problem of 106,000 ops takes a third longer to build and a plan of it to check, as all of it is looked
at again and again; little of it is garbage in cycles."""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect garbage rarely in this context; collections that are switched off, or made even rarer, stay so."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, before, _THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*before)
