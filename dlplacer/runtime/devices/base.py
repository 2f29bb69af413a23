"""The interface between the executor and a device."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dlplacer.runtime.devices.interruptible_future import T
from dlplacer.runtime.devices.worker import Worker

NamedDevice = str | torch.device
"""A device of this machine, as a person writes it."""

Value = torch.Tensor | None
"""What goes from op to op: a tensor, or None along an edge that carries only an order."""

HOST_DEVICE = torch.device("cpu")
"""Where torch keeps tensors of the host's memory."""


@dataclass(frozen=True, slots=True)
class TensorInFlight:
    """A tensor that is there once an event has happened."""

    tensor: torch.Tensor
    arrived: torch.Event


InFlight = Value | TensorInFlight
"""What one device sends and another receives."""


class RuntimeDevice(Protocol):
    """An execution resource for ops, driven by a dedicated thread.

    A device that enqueues work on streams also has an attribute ``streams``
    (`dlplacer.runtime.devices.device_streams.Streams`), and the program says what happens on them: its `send` and
    `receive` only hand over.

    Attributes
    ----------
    name
        As the user wrote it: ``cpu:0``, ``cuda:1``.
    type
        Name of its type in topologies and in an op's times: ``cpu-core``, ``V100``.
    torch_device
        Where its tensors live for torch; ``cpu`` for every CPU device, since torch has no name for a single core.
    worker
        Its thread; devices with streams share one.
    """

    name: str
    type: str
    torch_device: torch.device

    @property
    def worker(self) -> "Worker":
        """The thread that issues its work."""

    def activate(self) -> None:
        """On the device's thread: have ops that follow run on this device."""

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Run a function on the device's thread, after all that was submitted before."""

    def send(self, tensor: Value, target: "RuntimeDevice") -> InFlight:
        """On this device's thread: start moving a tensor to another device; returns what `receive` takes there."""

    def receive(self, in_flight: InFlight) -> Value:
        """On this device's thread: the tensor that another device sent, safe to use by the ops that follow."""

    def drain(self) -> None:
        """From any thread: wait for all that anyone has enqueued on the device."""

    def synchronize(self) -> None:
        """On this device's thread: wait until all ops have finished."""

    def now(self) -> Any:
        """On this device's thread: a mark in the device's own order of work."""

    def elapsed_s(self, begin: Any, end: Any) -> float:
        """Seconds between two marks, once the device is synchronized."""

    def close(self) -> None:
        """End the device's thread; the device cannot be used afterwards."""
