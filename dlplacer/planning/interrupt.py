"""Ctrl-C as a request to stop: a flag that the search reads, instead of an exception in the middle of it.

`kept_interrupts` makes sure that no Ctrl-C is lost, and `end_with_parent` that a process ends with its parent.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from dlplacer.core.errors import NoPlanError

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def stop_on_interrupt(stop: threading.Event, say: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Have the first Ctrl-C set an event; a second one raises KeyboardInterrupt as usual.

    An exception from a signal handler can strike anywhere, even where Python drops it (a weak reference's callback); a
    flag cannot be lost. Outside the main thread nothing happens, because only that thread may handle signals.
    """

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_set():
            before(number, frame) if callable(before) else signal.default_int_handler(number, frame)
            return
        stop.set()
        say()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def plan_or_interrupt(stop: threading.Event) -> Iterator[None]:
    """Have Ctrl-C stop the search and keep its best plan; without a plan, raise KeyboardInterrupt.

    A handler that is not Python's own stays in place.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = threading.Event()
    with stop_on_interrupt(stop, interrupted.set):
        try:
            yield
        except NoPlanError:
            if interrupted.is_set():
                raise KeyboardInterrupt from None
            raise


@contextlib.contextmanager
def kept_interrupts() -> Iterator[None]:
    """At the end of the context, raise a KeyboardInterrupt that Python dropped inside it.

    Python only prints an exception raised in a finalizer or in the callback of a weak reference, so a Ctrl-C during a
    garbage collection may be lost. Outside the main thread nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    dropped: list[type[BaseException]] = []
    before = sys.unraisablehook

    def keep(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            dropped.append(unraisable.exc_type)
        else:
            before(unraisable)

    try:
        sys.unraisablehook = keep
        yield
    finally:
        sys.unraisablehook = before
        if dropped:
            raise dropped[0]


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent ends, or end it now if the parent has already ended.

    Nothing happens on systems other than Linux.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
