"""One step on one device while it runs: what it holds, and what is handed from device to device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from dlplacer.runtime.devices.base import RuntimeDevice, Value
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.hand_over import Inbox
from dlplacer.runtime.executor.step_inputs import StepInputs, Values


class RankLinks(Protocol):
    """Carries tensors to and from the devices of other processes in one program.

    Attributes
    ----------
    on_device
        Whether tensors are handed over on their own device, not in the host's memory.
    """

    on_device: bool

    def begin(self) -> None:
        """Before a run of the program: expect its messages."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """On the source's thread: start moving a tensor, and go on."""

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """On the target's thread: wait for a tensor."""

    def fail(self, error: BaseException) -> None:
        """End the run in all processes: an action has failed here."""


@dataclass
class DeviceRun:
    """One device in one run of a program.

    Attributes
    ----------
    values
        What the device holds between the functions of its program, and between programs.
    inboxes
        Device name in the program → what is handed to it.
    events
        Name → event, of all devices of the run.
    copies
        (tensor, target) → copy that has not been sent yet, between functions.
    recorded
        The events among `events` that this device has recorded.
    """

    device: RuntimeDevice
    values: Values
    inputs: StepInputs
    inboxes: Mapping[str, Inbox]
    events: dict[str, torch.Event]
    timeline: DeviceTimeline | None = None
    copies: dict[tuple[str, str], Value] = field(default_factory=dict)
    recorded: list[torch.Event] = field(default_factory=list)

    def give_back_events(self) -> None:
        """Once all devices have issued their actions, so that nobody will wait for the events of this run."""
        streams = streams_of(self.device)
        if streams is not None:
            streams.events.give_back(self.recorded)

    def resume(self) -> None:
        """Note, if the step is recorded, that the device goes on after waiting."""
        if self.timeline is not None:
            self.timeline.resume(self.device)
