"""Ctrl-C as a request to stop: a flag that the search looks at, not an exception in the middle of it.

`kept_interrupts` sees to it that one is not lost. And processes that end with the one that started them:
`end_with_parent`.
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

    An exception out of a signal handler can strike anywhere, also where Python drops it (a weak reference's callback);
    a flag cannot be lost. It does nothing outside of the main thread, which alone may handle signals.
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
    """Have a Ctrl-C stop the search, so that it costs no plan that is there; without one it is a KeyboardInterrupt.

    It leaves a handler alone that is not Python's own.
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
    """Raise a KeyboardInterrupt that Python drops meanwhile when the context is left.

    One that strikes in a finalizer, or in the callback of a weak reference, is printed and forgotten by Python: so a
    Ctrl-C that comes while the garbage collector runs may be lost. It does nothing outside of the main thread.
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
    """Have the system kill this process when its parent ends, and end it if that has happened already.

    Does nothing where the system has no such signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
