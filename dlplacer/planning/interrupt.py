"""Ctrl-C as a request to stop: a flag that the search looks at, not an exception in the middle of it.

And processes that end with the one that started them: `leave_signals_to_parent`, `end_with_parent`.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def stop_on_interrupt(stop: threading.Event, say: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Have the first Ctrl-C set an event; a second one does what the first would have done: KeyboardInterrupt.

    An exception out of a signal handler can strike anywhere, also where Python drops it (a weak reference's callback);
    a flag cannot be lost. It does nothing outside of the main thread, which alone may handle signals.

    Parameters
    ----------
    say
        Called after the first Ctrl-C, to tell the user.
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


def interrupts_by_exception() -> bool:
    """Whether Ctrl-C would raise KeyboardInterrupt, Python's default: nobody handles it in another way."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def leave_signals_to_parent(parent: int) -> None:
    """In a process that works for another: a Ctrl-C, which a terminal sends to both, is the other's to answer.

    Parameters
    ----------
    parent
        Process id of the other.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent ends, and end it if that has happened already.

    Does nothing where the system has no such signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
