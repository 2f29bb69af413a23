"""A device in the host's memory: a thread, between which tensors are handed over."""

import time
from collections.abc import Callable

from dlplacer.runtime.devices.base import HOST_DEVICE, InFlight, RuntimeDevice, TensorInFlight, Value
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.devices.worker import Worker


class HostClock:
    """Marks of the host's clock."""

    def now(self) -> int:
        """Nanoseconds of a monotonic clock."""
        return time.perf_counter_ns()

    def elapsed_s(self, begin: int, end: int) -> float:
        """Seconds between two marks."""
        return (end - begin) * 1e-9


class HostDevice(HostClock, Worker):
    """A thread whose ops are done when their calls return; see `RuntimeDevice`.

    Parameters
    ----------
    prepare, suits
        As for `Worker`.
    """

    def __init__(
        self,
        name: str,
        type: str,
        prepare: Callable[[], None] = lambda: None,
        suits: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.type = type
        self.torch_device = HOST_DEVICE
        super().__init__(name, prepare, suits)

    @property
    def worker(self) -> Worker:
        """The device itself: one thread for each core."""
        return self

    def activate(self) -> None:
        """Nothing to do: the thread is pinned to the core."""

    def send(self, tensor: Value, target: RuntimeDevice) -> InFlight:
        """The tensor itself to a device of the same memory; a copy to any other, which may be under way."""
        if tensor is None or target.torch_device == HOST_DEVICE:
            return tensor
        streams = streams_of(target)
        if streams is None:
            return tensor.to(target.torch_device)
        return TensorInFlight(*streams.upload(tensor, target.torch_device, f"from {self.name}"))

    def receive(self, in_flight: InFlight) -> Value:
        """The tensor: it is ready when it arrives."""
        assert not isinstance(in_flight, TensorInFlight)
        return in_flight

    def drain(self) -> None:
        """Nothing to wait for: other threads' ops have finished when their calls return."""

    def synchronize(self) -> None:
        """Nothing to wait for: an op has finished when its call returns."""
