"""Loops that end in time: whoever starts work says when it is over, and long loops ask.

A list schedule of 10,000 ops on 32 devices takes half a minute, so a look at the clock between two of them is not
enough; and it is called through layers that know nothing of time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Found = TypeVar("Found")

_limits: ContextVar[tuple[Callable[[], bool], ...]] = ContextVar("limits", default=())


class OutOfTimeError(Exception):
    """Work that `ends_when` limits is over; who limited it goes on without."""


@contextmanager
def ends_when(is_over: Callable[[], bool]) -> Iterator[None]:
    """Have loops inside that call `ask_time` end by `OutOfTimeError` as soon as `is_over` says so."""
    token = _limits.set((*_limits.get(), is_over))
    try:
        yield
    finally:
        _limits.reset(token)


def time_is_up() -> bool:
    """True if any of the limits around is reached."""
    return any(is_over() for is_over in _limits.get())


def ask_time() -> None:
    """Go on, unless time is up.

    Raises
    ------
    OutOfTimeError
        If any of the limits around is reached.
    """
    # Not `time_is_up`: long loops ask a million times in a solve of 20 s, and its generator takes 0.3 µs more.
    for is_over in _limits.get():
        if is_over():
            raise OutOfTimeError


def within(is_over: Callable[[], bool], work: Callable[[], Found]) -> Found | None:
    """The result of some work; None if it is over before, or before it begins."""
    if is_over():
        return None
    try:
        with ends_when(is_over):
            return work()
    except OutOfTimeError:
        return None
