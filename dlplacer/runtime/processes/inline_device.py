"""A core as the device of the calling thread: of a worker process, or of whoever takes a step."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import torch

from dlplacer.runtime.devices.base import HOST_DEVICE, InFlight, RuntimeDevice, T, TensorInFlight, Value
from dlplacer.runtime.devices.host_device import HostClock


class InlineDevice(HostClock):
    """Runs what it is given at once, on the calling thread; see `RuntimeDevice`."""

    def __init__(self, name: str, type: str) -> None:
        self.name = name
        self.type = type
        self.torch_device = HOST_DEVICE

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Run a function; the future is done."""
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        return future

    def send(self, tensor: Value, target: RuntimeDevice) -> InFlight:  # noqa: ARG002
        """The tensor; no other device is in this process."""
        return tensor

    def receive(self, in_flight: InFlight) -> Value:
        """The tensor."""
        assert not isinstance(in_flight, TensorInFlight)
        return in_flight

    def drain(self) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to end."""


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep the calling thread on a core, with one torch thread, for a while."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {core})
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        if threads != 1:
            torch.set_num_threads(threads)
