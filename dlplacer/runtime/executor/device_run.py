"""One step on one device while it runs: what it holds, and what is handed from device to device."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from dlplacer.runtime.devices.base import RuntimeDevice, Value
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.hand_over import Inbox
from dlplacer.runtime.executor.step_inputs import StepInputs, Values


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
    """

    device: RuntimeDevice
    values: Values
    inputs: StepInputs
    inboxes: Mapping[str, Inbox]
    events: dict[str, torch.Event]
    timeline: DeviceTimeline | None = None
    copies: dict[tuple[str, str], Value] = field(default_factory=dict)

    def resume(self) -> None:
        """Note, if the step is recorded, that the device goes on after waiting."""
        if self.timeline is not None:
            self.timeline.resume(self.device)
