"""Devices as the executor sees them, the thread of each, and the properties in which their kinds differ."""

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
    """A daemon thread with a task queue, on which `prepare` runs first.

    It ends when it is closed or nobody holds it any more.
    """

    def __init__(self, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        self._closing = threading.Lock()
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
        self._thread.start()
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
            _shared[os.getpid()] = found = Worker("issue")
        return found


_shared: "weakref.WeakValueDictionary[int, Worker]" = weakref.WeakValueDictionary()
"""Process → its thread, as long as a device uses it; a forked process has none."""
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
"""A device of this machine, as a person writes it."""

Value = torch.Tensor | None
"""What goes from op to op: a tensor, or None along an edge that carries only an order."""

HOST_DEVICE = torch.device("cpu")
"""Where torch keeps tensors of the host's memory."""


class RuntimeDevice:
    """A device that runs ops, issued by its thread. Those of this class are done when their calls return.

    `name` is as the user wrote it, `type` as in topologies and in an op's times. A device that enqueues its work has
    `streams`, and shares its thread with the others that have.
    """

    streams: "Streams | None" = None

    def __init__(
        self, name: str, type: str, torch_device: torch.device = HOST_DEVICE, worker: Worker | None = None
    ) -> None:
        self.name, self.type, self.torch_device = name, type, torch_device
        self.worker = worker or Worker(name)

    def activate(self) -> None:
        """On the device's thread: have ops that follow run on this device."""

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """Run a function on the device's thread, after all that was submitted before."""
        return self.worker.submit(work)

    def receive(self, tensor: Value) -> Value:
        """On this device's thread: a tensor of the host's memory in this device's, safe for later actions to use."""
        return tensor if tensor is None else tensor.to(self.torch_device)

    def pause(self, pause_s: float) -> None:
        """On this device's thread: let the device pause."""
        time.sleep(pause_s)

    def drain(self) -> None:
        """From any thread: wait for all that anyone has enqueued on the device."""

    def synchronize(self) -> None:
        """On this device's thread: wait until all ops have finished."""

    def now(self) -> Any:
        """On this device's thread: a mark in the device's own order of work."""
        return time.perf_counter_ns()

    def elapsed_s(self, begin: Any, end: Any) -> float:
        """Seconds between two marks, once the device is synchronized."""
        return float(end - begin) * 1e-9

    def close(self) -> None:
        """Take no more work; the device cannot be used afterwards."""
        self.worker.close()


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device: CPU cores, CUDA devices. Its functions take an index.

    `torch_type` is torch's name of it, with which names of devices begin. `open` takes ``(index, part=None,
    copies="free")`` and starts a device, or one of several logical devices if it is `divisible`: ``cuda:0/0`` and
    ``cuda:0/1``. `in_host_memory`: tensors are handed over, and each device issues its own ops. `collectives` is the
    backend of torch.distributed for its tensors, `generator` the one from which ops draw by default. Measured times are
    valid for these `versions` of hardware and software, torch's aside.
    """

    torch_type: str
    open: Callable[..., RuntimeDevice]
    count: Callable[[], int]
    in_host_memory: bool
    divisible: bool
    collectives: str
    generator: Callable[[int], torch.Generator]
    versions: Callable[[int], Mapping[str, str]]
