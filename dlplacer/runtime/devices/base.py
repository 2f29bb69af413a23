"""The interface between the executor and a device, and the properties in which kinds of devices differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dlplacer.runtime.devices.worker import Reply, T, Worker

NamedDevice = str | torch.device
"""A device of this machine, as a person writes it."""

Value = torch.Tensor | None
"""What goes from op to op: a tensor, or None along an edge that carries only an order."""

HOST_DEVICE = torch.device("cpu")
"""Where torch keeps tensors of the host's memory."""


class RuntimeDevice(Protocol):
    """A device that runs ops, issued by a thread.

    `name` is as the user wrote it, `type` as in topologies and in an op's times. A device that enqueues work on streams
    also has an attribute ``streams`` (`dlplacer.runtime.devices.streams.Streams`).
    """

    name: str
    type: str
    torch_device: torch.device

    @property
    def worker(self) -> Worker:
        """The thread that issues its work; devices with streams share one."""

    def activate(self) -> None:
        """On the device's thread: have ops that follow run on this device."""

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """Run a function on the device's thread, after all that was submitted before."""

    def receive(self, tensor: Value) -> Value:
        """On this device's thread: a tensor of the host's memory in this device's, safe for later actions to use."""

    def drain(self) -> None:
        """From any thread: wait for all that anyone has enqueued on the device."""

    def synchronize(self) -> None:
        """On this device's thread: wait until all ops have finished."""

    def now(self) -> Any:
        """On this device's thread: a mark in the device's own order of work."""

    def elapsed_s(self, begin: Any, end: Any) -> float:
        """Seconds between two marks, once the device is synchronized."""

    def close(self) -> None:
        """Take no more work; the device cannot be used afterwards."""


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
