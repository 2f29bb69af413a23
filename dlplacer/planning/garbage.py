"""Python's garbage collection while a problem is solved."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 50, 20)
"""New objects before a collection, and collections before a collection of the next generation. With Python's default,
(700, 10, 10), building a problem of 106,000 ops and checking its plan take a third longer: collections traverse all
objects again and again, although few of them are garbage in cycles."""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect garbage rarely in this context, unless collection is off or already rarer."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, before, _THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*before)
