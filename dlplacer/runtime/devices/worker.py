"""A thread that runs the functions it is given, in order."""

import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from dlplacer.core.errors import InputError

T = TypeVar("T")

_MOST_TRIES = 64
"""Threads to try for one that suits: glibc deals out at most 8 arenas for each core, in turn."""


class InterruptibleFuture(Future[T]):
    """A future whose result a Ctrl-C may interrupt anywhere.

    `Future.result` takes a lock, in Python, that the other thread needs too: an interrupt there would leave it taken.
    So a waiting thread touches that lock only once there is a result, and the other thread not afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given = False
        self._pending = threading.Lock()
        self._pending.acquire()

    def result(self, timeout: float | None = None) -> T:
        """The result, once it is there; TimeoutError if it is not within so many seconds."""
        if not self._given and self._pending.acquire(timeout=-1 if timeout is None else timeout):
            self._pending.release()
        if not self._given:
            raise TimeoutError
        return super().result()

    def set_result(self, result: T) -> None:
        """Have `result` return this; InvalidStateError if there was an answer before."""
        self._require_open()
        super().set_result(result)
        self._give()

    def set_exception(self, exception: BaseException | None) -> None:
        """Have `result` raise this; InvalidStateError if there was an answer before."""
        self._require_open()
        super().set_exception(exception)
        self._give()

    def _require_open(self) -> None:
        if self._given:
            raise InvalidStateError("there is an answer already")

    def _give(self) -> None:
        self._given = True
        self._pending.release()


_Task = tuple[Future[Any], Callable[[], Any]] | None


class Worker:
    """A daemon thread with a task queue; it ends when it is closed or nobody holds it any more.

    Parameters
    ----------
    prepare
        Runs first on the thread.
    suits
        Called on new threads until one returns True.
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

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Queue a function; the future gives its result or raises its exception. InputError if the thread has ended."""
        future = InterruptibleFuture[T]()
        with self._closing:
            if not self._finalizer.alive:
                raise InputError(f"device {self._thread.name!r} is closed; apply the plan again to run it")
            self._tasks.put((future, work))
        return future

    def close(self) -> None:
        """End the thread after what is queued, and wait for it."""
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
            answer = InterruptibleFuture[bool]()
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
        future, work = task
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        # Between tasks the loop's variables would keep the last step's tensors, and its exception's frames, alive.
        del task, future, work
        result = None
