"""The actions that move tensors or order streams, ready to be called by the issuing loop."""

from dataclasses import dataclass
from typing import Any

import torch

from dlplacer.core.errors import InternalError, RunError, first_line
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, streams_of
from dlplacer.runtime.devices.transfer import brought
from dlplacer.runtime.executor.run import ProgramRun, RankLinks
from dlplacer.runtime.program.program import Copy, Hold, Record, Recv, Send, StreamAction, Sync, Wait


@dataclass(frozen=True, slots=True)
class ActivateStep:
    """Turns a thread that several devices share to one of them."""

    device: RuntimeDevice

    def __call__(self, run: ProgramRun) -> None:  # noqa: ARG002
        """Make the device and its compute stream current."""
        self.device.activate()

    def message(self, error: Exception) -> str:
        """Which device failed."""
        return f"{self.device.name} failed: {first_line(error)}"


@dataclass(frozen=True, slots=True)
class SendStep:
    """Hands a tensor, or its copy that is under way, to another device: of another process if `target` is None."""

    action: Send
    home: str
    device: RuntimeDevice
    target: RuntimeDevice | None
    links: RankLinks | None

    def __call__(self, run: ProgramRun) -> None:
        """Start moving the tensor, and go on."""
        tensor, name = self.action.tensor, self.action.target
        copied = run.copies.pop((tensor, self.home, name), None)
        value: Any = run.state.values[self.home][tensor] if copied is None else copied
        if self.target is None:
            assert self.links is not None
            self.links.send(tensor, self.home, name, value)
        else:
            run.cells[tensor, name].put(self.device.send(value, self.target) if copied is None else copied)

    def message(self, error: Exception) -> str | None:
        """Which transfer failed; None if the error says it itself."""
        if self.target is None:
            return None
        where = f"from {self.device.name} to {self.target.name}"
        return f"sending tensor {self.action.tensor!r} {where} failed: {first_line(error)}"


@dataclass(frozen=True, slots=True)
class ReceiveStep:
    """Takes a tensor that another device has sent: of another process if there are `links`."""

    action: Recv
    home: str
    device: RuntimeDevice
    links: RankLinks | None

    def __call__(self, run: ProgramRun) -> None:
        """Wait for the tensor, and keep it among the values of the device."""
        tensor = self.action.tensor
        if self.links is None:
            value = self.device.receive(run.cells[tensor, self.home].take())
        else:
            value = self._from_away(self.links)
        run.state.values[self.home][tensor] = value
        if self.home in run.timelines:
            run.timelines[self.home].resume(self.device)

    def message(self, error: Exception) -> str | None:  # noqa: ARG002
        """None: the error says it itself."""
        return None

    def _from_away(self, links: RankLinks) -> Any:
        value = links.receive(self.action.tensor, self.action.source, self.home)
        if value is None or value.device == self.device.torch_device:
            return value
        try:
            return brought(value, self.device)
        except Exception as error:
            where = f"from {self.action.source} on {self.device.name}"
            raise RunError(f"receiving tensor {self.action.tensor!r} {where} failed: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class StreamStep:
    """An action on the streams of a device; a COPY without a `target` goes through the host to another process.

    `events`: those of the program by name, recorded again in every run.
    """

    action: StreamAction
    home: str
    device: RuntimeDevice
    events: dict[str, torch.Event]
    target: RuntimeDevice | None = None

    def __call__(self, run: ProgramRun) -> None:
        """Enqueue it."""
        action, streams = self.action, streams_of(self.device)
        if isinstance(action, Sync):
            self.events[action.event].synchronize()
        elif streams is None:
            raise InternalError(f"{action}: device {self.device.name!r} has no streams")
        elif isinstance(action, Record):
            self.events[action.event] = streams.record(action.stream, self.events.get(action.event))
        elif isinstance(action, Wait):
            streams.wait(action.stream, self.events[action.event])
        elif (value := run.state.values[self.home][action.tensor]) is not None and isinstance(action, Hold):
            streams.hold(value, action.stream)
        elif value is not None and isinstance(action, Copy):
            memory = HOST_DEVICE if self.target is None else self.target.torch_device
            there = None if self.target is None else streams_of(self.target)
            run.copies[action.tensor, self.home, action.target] = streams.copy(value, memory, action.stream, there)
        waits = isinstance(action, Sync) or (isinstance(action, Wait) and action.stream == COMPUTE_STREAM)
        if waits and self.home in run.timelines:
            run.timelines[self.home].resume(self.device)

    def message(self, error: Exception) -> str:
        """Which action failed."""
        return f"{self.action} failed on {self.device.name}: {first_line(error)}"
