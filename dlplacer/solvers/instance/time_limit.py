"""The clock of a solve, and loops that end in time: a caller sets a limit, and long loops check it.

A limit is a context variable, so it reaches inner loops without a parameter. The clock is the machine's or counts work.
A solve that counts work ends at the same point on every machine.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from threading import Thread
from typing import TypeVar

Found = TypeVar("Found")


@dataclass
class WorkClock:
    """Seconds of work so far: each part of the work adds about the seconds that it takes on two cores of 2020."""

    now_s: float = 0.0


_LOOK_S = 1e-5
"""Seconds of work counted per look at the clock or check of a limit."""

_clock: ContextVar[WorkClock | None] = ContextVar("clock", default=None)


@contextmanager
def counting_work() -> Iterator[None]:
    """Make the clock count work inside the context."""
    token = _clock.set(WorkClock())
    try:
        yield
    finally:
        _clock.reset(token)


def counts_work() -> bool:
    """True if the clock counts work: then nothing may depend on time or on caches of earlier processes."""
    return _clock.get() is not None


def now() -> float:
    """The clock, in seconds since an arbitrary moment."""
    clock = _clock.get()
    if clock is None:
        return time.monotonic()
    clock.now_s += _LOOK_S
    return clock.now_s


def count_work(seconds: float) -> None:
    """Add seconds of work to the clock if it counts work."""
    clock = _clock.get()
    if clock is not None:
        clock.now_s += seconds


_limits: ContextVar[tuple[Callable[[], bool], ...]] = ContextVar("limits", default=())


class OutOfTimeError(Exception):
    """A limit set by `ends_when` is reached; the code that set it goes on without the result of the work."""


@contextmanager
def ends_when(is_over: Callable[[], bool]) -> Iterator[None]:
    """Make loops inside that call `ask_time` raise `OutOfTimeError` once `is_over()`."""
    token = _limits.set((*_limits.get(), is_over))
    try:
        yield
    finally:
        _limits.reset(token)


def time_is_up() -> bool:
    """True if any enclosing limit is reached."""
    return any(is_over() for is_over in _limits.get())


def ask_time() -> None:
    """Raise OutOfTimeError if any enclosing limit is reached."""
    # Not `time_is_up`, whose generator is slower: long loops check a million times in a solve.
    count_work(_LOOK_S)
    for is_over in _limits.get():
        if is_over():
            raise OutOfTimeError


def within(is_over: Callable[[], bool], work: Callable[[], Found]) -> Found | None:
    """Run `work` until `is_over()`; None on timeout."""
    if is_over():
        return None
    try:
        with ends_when(is_over):
            return work()
    except OutOfTimeError:
        return None


_POLL_S, _GRACE_SHARE, _GRACE_S = 0.05, 0.02, 0.2
"""Seconds between looks at a thread, short enough for users; share of the thread's limit, and seconds, by which it may
overrun before it is left behind."""


def in_thread(work: Callable[[], Found], seconds: float, look: Callable[[], bool], end: Callable[[], object]) -> Found:
    """The result of `work` in a thread, so that the calling thread notices Ctrl-C and can abandon the work.

    `look` is polled, and returns True if the work must end; `end` then asks the work to end, which may take a while.
    Raises TimeoutError if the work overruns `seconds`; its thread then goes on, and the result is lost.
    """
    context, running, clock = copy_context(), Future[Found](), _clock.get()
    # Enclosing limits stay in the calling thread.
    context.run(_limits.set, ())
    if clock is not None:
        # The thread counts its own work; the number of looks depends on the machine.
        seconds = math.inf

    def done() -> None:
        try:
            running.set_result(context.run(work))
        except BaseException as error:
            running.set_exception(error)

    def look_unheard() -> bool:
        token = _clock.set(None if clock is None else WorkClock(clock.now_s))
        try:
            return look()
        finally:
            _clock.reset(token)

    stop_at = time.monotonic() + seconds
    Thread(target=done, daemon=True).start()
    while not running.done():
        if time.monotonic() > stop_at + _GRACE_SHARE * seconds + _GRACE_S:
            raise TimeoutError
        wait((running,), _POLL_S)
        if look_unheard() or time.monotonic() > stop_at:
            end()
    return running.result()


def side_by_side(tasks: Sequence[Callable[[int], object]], workers: int) -> None:
    """Run tasks in up to `workers` threads, each with its share of workers and the enclosing limits; wait for all."""
    at_once = min(workers, len(tasks))
    if at_once <= 1:
        for task in tasks:
            task(workers)
        return
    with ThreadPoolExecutor(at_once) as pool:
        # `ask_time` reads a context variable, which threads do not inherit.
        running = [pool.submit(copy_context().run, task, workers // at_once) for task in tasks]
        for one in running:
            one.result()
