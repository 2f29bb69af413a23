"""A core as the device of the calling thread: of a worker process, or of whoever takes a step."""

from collections.abc import Callable
from concurrent.futures import Future

from dlplacer.runtime.devices.base import HOST_DEVICE, InFlight, RuntimeDevice, T, TensorInFlight, Value
from dlplacer.runtime.devices.host_device import HostClock


class InlineDevice(HostClock):
    """Runs what it is given at once, on the calling thread; see `RuntimeDevice`."""

    def __init__(self, name: str, type: str) -> None:
        self.name = name
        self.type = type
        self.torch_device = HOST_DEVICE

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Run a function; the future is done. What is no error, such as Ctrl-C, is raised here, on its own thread."""
        future: Future[T] = Future()
        try:
            result = work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    def call(self, work: Callable[[], T]) -> T:
        """Run a function."""
        return work()

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
