"""The clock of a solve, and loops that end in time: whoever starts work says when it is over, and long loops ask.

A list schedule of 10,000 ops on 32 devices takes half a minute and is called through layers that know nothing of time.
The clock is the machine's, or counts work: then a solve ends where the same solve ends on every machine.
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
    """Seconds of work so far: each part counts about as many as it takes on two cores of 2020."""

    now_s: float = 0.0


_LOOK_S = 1e-5
"""Seconds of work between two looks at the clock, or two questions of a long loop."""

_clock: ContextVar[WorkClock | None] = ContextVar("clock", default=None)


@contextmanager
def counting_work() -> Iterator[None]:
    """Have the clock count work inside."""
    token = _clock.set(WorkClock())
    try:
        yield
    finally:
        _clock.reset(token)


def counts_work() -> bool:
    """True if the clock counts work: then nothing may hang on time or on what an earlier process has left."""
    return _clock.get() is not None


def now() -> float:
    """The clock, in seconds since some moment."""
    clock = _clock.get()
    if clock is None:
        return time.monotonic()
    clock.now_s += _LOOK_S
    return clock.now_s


def count_work(seconds: float) -> None:
    """Count what was done without a look at the clock, where it counts work."""
    clock = _clock.get()
    if clock is not None:
        clock.now_s += seconds


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
    """Raise OutOfTimeError if any of the limits around is reached."""
    # Not `time_is_up`: long loops ask a million times in a solve of 20 s, and its generator takes 0.3 µs more.
    count_work(_LOOK_S)
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


_POLL_S, _GRACE_SHARE, _GRACE_S = 0.05, 0.02, 0.2
"""Seconds between looks at a thread, which a user notices as immediate; share of its limit and seconds that it may
overrun before it is left behind."""


def in_thread(work: Callable[[], Found], seconds: float, look: Callable[[], bool], end: Callable[[], object]) -> Found:
    """The result of some work that a thread does, so that this one hears Ctrl-C and can leave it behind.

    `look` says every now and then whether the work shall end; `end` asks it to, which it may do late. If it does not
    end within its limit of so many seconds, TimeoutError is raised: it goes on in its thread, and nobody hears of it.
    """
    context, running, clock = copy_context(), Future[Found](), _clock.get()
    # This thread keeps the limits around.
    context.run(_limits.set, ())
    if clock is not None:
        # The thread counts what it does; how often this one looks hangs on the machine.
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
    """Run tasks, each with its number of workers, in as many threads as there are workers, and wait for all.

    They end in time by themselves, and hear of the limits around.
    """
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
