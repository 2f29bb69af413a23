"""Python's garbage collection while a problem is solved."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 50, 20)
"""New objects before a collection, and collections before one of the next generation. With Python's own (700, 10, 10)
building a problem of 106,000 ops and checking its plan take a third longer. Collections would traverse all objects
again and again, although few of them are garbage in cycles."""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect garbage rarely in this context; a setting that is off, or even rarer, stays."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, before, _THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*before)
