"""Devices as the executor sees them, and the properties in which their kinds differ."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dlplacer.runtime.devices.worker import Reply, T, Worker

if TYPE_CHECKING:
    from dlplacer.runtime.devices.streams import Streams

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
        self.worker = worker or Worker(name, lambda: None)

    def activate(self) -> None:
        """On the device's thread: have ops that follow run on this device."""

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """Run a function on the device's thread, after all that was submitted before."""
        return self.worker.submit(work)

    def receive(self, tensor: Value) -> Value:
        """On this device's thread: a tensor of the host's memory in this device's, safe for later actions to use."""
        return tensor if tensor is None else tensor.to(self.torch_device)

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
