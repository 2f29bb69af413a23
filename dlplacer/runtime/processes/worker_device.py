"""The device of a worker process: its only thread."""

from collections.abc import Callable
from concurrent.futures import Future

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice, T, Value
from dlplacer.runtime.devices.host_device import HostClock


class WorkerDevice(HostClock):
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

    def send(self, tensor: Value, target: RuntimeDevice) -> Value:  # noqa: ARG002
        """The tensor; no other device is in this process."""
        return tensor

    def receive(self, in_flight: Value) -> Value:
        """The tensor."""
        return in_flight

    def drain(self) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to end."""
