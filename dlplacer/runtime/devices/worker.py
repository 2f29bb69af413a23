"""A thread that runs the functions it is given, in order."""

import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from dlplacer.core.errors import InputError

T = TypeVar("T")

_MOST_TRIES = 64
"""Threads to try for one that suits: glibc deals out at most 8 arenas for each core, in turn."""


class Reply(Generic[T]):
    """The result of a function that another thread runs, to be asked for once; a Ctrl-C may interrupt that anywhere.

    A `concurrent.futures.Future` has a lock, taken in Python, that both threads need: an interrupt there would leave it
    taken. A SimpleQueue is written in C.
    """

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def give(self, result: T | None, error: BaseException | None = None) -> None:
        """Have `result` return this, or raise it."""
        self._given.put((result, error))

    def result(self) -> T:
        """The result, once it is there."""
        result, error = self._given.get()
        try:
            if error is not None:
                raise error
        finally:
            # Were this frame to refer to the error, the cycle would keep all that the error's frames refer to.
            del error
        return cast(T, result)


_Task = tuple[Reply[Any], Callable[[], Any]] | None


class Worker:
    """A daemon thread with a task queue; it ends when it is closed or nobody holds it any more.

    New threads are started until one `suits`; `prepare` runs first on it.
    """

    def __init__(self, name: str, prepare: Callable[[], None], suits: Callable[[], bool] = lambda: True) -> None:
        self._closing = threading.Lock()
        self._tasks, self._thread = _started(name, suits)
        # The thread holds the queue and not the worker, so dropping the last reference to a device ends its thread.
        self._finalizer = weakref.finalize(self, self._tasks.put, None)
        try:
            self.submit(prepare).result()
        except BaseException:
            self.close()
            raise

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """Queue a function; the answer is its result or raises its exception. InputError if the thread has ended."""
        answer = Reply[T]()
        with self._closing:
            if not self._finalizer.alive:
                raise InputError(f"device {self._thread.name!r} is closed; apply the plan again to run it")
            self._tasks.put((answer, work))
        return answer

    def close(self) -> None:
        """End the thread after its queued work, and wait for it."""
        with self._closing:
            self._finalizer()
        if threading.current_thread() is not self._thread:
            self._thread.join()


def issuing_thread() -> Worker:
    """The thread that issues for all devices with streams of this process: several would fight for the interpreter."""
    with _sharing:
        found = _shared.get(os.getpid())
        if found is None:
            _shared[os.getpid()] = found = Worker("issue", lambda: None)
        return found


_shared: "weakref.WeakValueDictionary[int, Worker]" = weakref.WeakValueDictionary()
"""Process → its thread, as long as a device uses it; a forked process has none."""
_sharing = threading.Lock()


def _started(name: str, suits: Callable[[], bool]) -> "tuple[queue.SimpleQueue[_Task], threading.Thread]":
    """The queue of a new thread and the thread: the first that suits, else the last that is tried.

    The others live until it is found, because the next thread gets what an ended one leaves behind.
    """
    tried: list[tuple[queue.SimpleQueue[_Task], threading.Thread]] = []
    try:
        while True:
            tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
            thread = threading.Thread(target=_work, args=(tasks,), name=name, daemon=True)
            tried.append((tasks, thread))
            thread.start()
            answer = Reply[bool]()
            tasks.put((answer, suits))
            if answer.result() or len(tried) == _MOST_TRIES:
                return tried.pop()
    finally:
        for tasks, _ in tried:
            tasks.put(None)
        for _, thread in tried:
            if thread.is_alive():
                thread.join()


def _work(tasks: "queue.SimpleQueue[_Task]") -> None:
    while (task := tasks.get()) is not None:
        answer, work = task
        try:
            answer.give(work())
        except BaseException as error:
            answer.give(None, error)
        # Between tasks the loop's variables would keep the last step's tensors, and its exception's frames, alive.
        del task, answer, work
