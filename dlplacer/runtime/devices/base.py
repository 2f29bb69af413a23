"""Runtime devices, their threads, and the properties that distinguish device kinds."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from dlplacer.runtime.devices.cuda import Streams
import os
import queue
import threading
import weakref
from typing import Generic, TypeVar, cast

from dlplacer.core.errors import InputError

T = TypeVar("T")


class Reply(Generic[T]):
    """The result of a function that another thread runs; it is read once, and Ctrl-C is safe at any point.

    An interrupt could leave a `concurrent.futures.Future` locked for both threads, because its lock is taken in
    Python. This class uses a SimpleQueue, which takes its lock in C.
    """

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def give(self, result: T | None, error: BaseException | None = None) -> None:
        """Set the value that `result` returns, or the error that it raises."""
        self._given.put((result, error))

    def result(self) -> T:
        """Wait for the result, and return or raise it."""
        result, error = self._given.get()
        try:
            if error is not None:
                raise error
        finally:
            # A reference to the error here would be a cycle that keeps everything in the error's frames alive.
            del error
        return cast(T, result)


_Task = tuple[Reply[Any], Callable[[], Any]] | None


class Worker:
    """A daemon thread with a task queue; it runs `prepare` first.

    The thread ends when the worker is closed, or when nothing refers to it any more.
    """

    def __init__(self, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        self._closing = threading.Lock()
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
        self._thread.start()
        # The thread refers to the queue, not the worker: dropping the last reference to a device ends its thread.
        self._finalizer = weakref.finalize(self, self._tasks.put, None)
        try:
            self.submit(prepare).result()
        except BaseException:
            self.close()
            raise

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """Queue a function; the reply holds its result or exception. InputError if the worker is closed."""
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
    """The thread that issues ops for all devices with streams; several threads would compete for the interpreter."""
    with _sharing:
        found = _shared.get(os.getpid())
        if found is None:
            _shared[os.getpid()] = found = Worker("issue")
        return found


_shared: "weakref.WeakValueDictionary[int, Worker]" = weakref.WeakValueDictionary()
"""Process id → its issuing thread while a device uses it; a forked process starts without one."""
_sharing = threading.Lock()


def _work(tasks: "queue.SimpleQueue[_Task]") -> None:
    while (task := tasks.get()) is not None:
        answer, work = task
        try:
            answer.give(work())
        except BaseException as error:
            answer.give(None, error)
        # Between tasks the loop's variables would keep the last step's tensors, and its exception's frames, alive.
        del task, answer, work


NamedDevice = str | torch.device
"""A device of this machine as a user gives it: a name such as ``cpu:0``, or a torch device."""

Value = torch.Tensor | None
"""A value passed between ops: a tensor, or None on an edge that carries only an order."""

HOST_DEVICE = torch.device("cpu")
"""Torch's device for tensors in the host's memory."""


class RuntimeDevice:
    """A device that runs the ops issued by its thread; in this base class an op is done when its call returns.

    `name` is the user's name of the device; `type` is its type in topologies and op times. A device that enqueues its
    work has `streams`; all devices with streams share one thread.
    """

    streams: "Streams | None" = None

    def __init__(
        self, name: str, type: str, torch_device: torch.device = HOST_DEVICE, worker: Worker | None = None
    ) -> None:
        self.name, self.type, self.torch_device = name, type, torch_device
        self.worker = worker or Worker(name)

    def activate(self) -> None:
        """On the device's thread: make this device the current one for the ops that follow."""

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """Run a function on the device's thread, after all earlier submissions."""
        return self.worker.submit(work)

    def receive(self, tensor: Value) -> Value:
        """On this device's thread: move a tensor from the host's memory to the device, for use by later actions."""
        return tensor if tensor is None else tensor.to(self.torch_device)

    def pause(self, pause_s: float) -> None:
        """On this device's thread: make the device pause."""
        time.sleep(pause_s)

    def drain(self) -> None:
        """From any thread: wait for all work that any thread has enqueued on the device."""

    def synchronize(self) -> None:
        """On this device's thread: wait until all ops have finished."""

    def now(self) -> Any:
        """On this device's thread: a mark in the device's own order of work."""
        return time.perf_counter_ns()

    def elapsed_s(self, begin: Any, end: Any) -> float:
        """Seconds between two marks, once the device is synchronized."""
        return float(end - begin) * 1e-9

    def close(self) -> None:
        """Accept no more work; the device cannot be used afterwards."""
        self.worker.close()


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device: CPU cores or CUDA devices. Its functions, except `count`, take a device index.

    `torch_type` is torch's name of the kind, with which device names begin. `open` takes ``(index, part=None,
    copies="free")`` and starts a device. If the kind is `divisible`, `part` selects a logical device: ``cuda:0/0`` or
    ``cuda:0/1``. With `in_host_memory`, devices share tensors, and each issues its own ops. `collectives`: name of
    the torch.distributed backend. `generator`: the default random generator of a device. `versions`: versions of
    hardware and software; measured times are valid only for these and for torch's version.
    """

    torch_type: str
    open: Callable[..., RuntimeDevice]
    count: Callable[[], int]
    in_host_memory: bool
    divisible: bool
    collectives: str
    generator: Callable[[int], torch.Generator]
    versions: Callable[[int], Mapping[str, str]]
