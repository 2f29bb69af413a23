"""One step on one device while it runs: what it holds, what has arrived, and where it sends."""

import queue
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from dlplacer.runtime.devices.base import InFlight, RuntimeDevice, Value
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.executor.compile_program import StepInputs, Values
from dlplacer.runtime.executor.device_timeline import DeviceTimeline

Inbox = queue.SimpleQueue[tuple[str, InFlight]]
"""(tensor, what `RuntimeDevice.send` gave), in the order in which they are sent; an empty name aborts the run."""

_ABORT = ""


@dataclass
class DeviceRun:
    """One device in one run of a program.

    Attributes
    ----------
    events
        Name → event, of all devices of the run.
    copies
        (tensor, target) → copy that has not been sent yet.
    arrived
        Tensors that arrived before the program asked for them.
    recorded
        The events among `events` that this device has recorded.
    """

    device: RuntimeDevice
    values: Values
    inputs: StepInputs
    inboxes: Mapping[str, Inbox]
    name: str
    events: dict[str, torch.Event]
    copies: dict[tuple[str, str], Value] = field(default_factory=dict)
    arrived: dict[str, InFlight] = field(default_factory=dict)
    recorded: list[torch.Event] = field(default_factory=list)
    timeline: DeviceTimeline | None = None

    def receive(self, tensor: str) -> None:
        """Wait for a tensor, setting aside others that arrive first."""
        while tensor not in self.arrived:
            name, in_flight = self.inboxes[self.name].get()
            if name == _ABORT:
                raise AbortedError
            # Producers send in their own order, which need not be the order in which this device reads.
            self.arrived[name] = in_flight
        self.values[tensor] = self.device.receive(self.arrived.pop(tensor))
        self.resume()

    def give_back_events(self) -> None:
        """Once all devices have issued their actions, so that nobody will wait for the events of this run."""
        streams = streams_of(self.device)
        if streams is not None:
            streams.events.give_back(self.recorded)

    def resume(self) -> None:
        """Note, if the step is recorded, that the device goes on after waiting."""
        if self.timeline is not None:
            self.timeline.resume(self.device)


class AbortedError(Exception):
    """Another device failed."""


def abort(inboxes: Mapping[str, Inbox]) -> None:
    """Make every device stop at its next receive."""
    for inbox in inboxes.values():
        inbox.put((_ABORT, None))
