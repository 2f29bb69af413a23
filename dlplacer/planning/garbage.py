"""Python's garbage collection while a problem is solved."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_THRESHOLDS = (100_000, 50, 20)
"""Objects more than before ahead of a collection, and collections ahead of one of the next generation. By Python's own
(700, 10, 10) a problem of 106,000 ops takes a third longer to build and a plan of it to check, as all of it is looked
at again and again; little of it is garbage in cycles."""

_lock = Lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect garbage rarely while any block of this context runs.

    Collections that the caller has switched off, or made even rarer, stay so.
    """
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = gc.get_threshold()
            if _before[0]:
                gc.set_threshold(*map(max, _before, _THRESHOLDS))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                gc.set_threshold(*_before)
