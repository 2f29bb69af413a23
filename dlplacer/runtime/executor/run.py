"""One run of a program: what its devices hold, and what they hand to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

import torch

from dlplacer.runtime.devices.base import InFlight
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.step_inputs import StepInputs, Values


@dataclass
class StepState:
    """What devices hold in one step, from its first program to its last.

    Attributes
    ----------
    values
        Device name → tensors held.
    timeline
        Device name → when its ops ran, if that is recorded.
    """

    inputs: StepInputs
    values: dict[str, Values]
    timeline: dict[str, DeviceTimeline] | None = None


_GIVEN_UP = object()


class Cell:
    """A place for one tensor that one thread puts there and another takes."""

    __slots__ = ("_full", "_value")

    def __init__(self) -> None:
        self._value: object = None
        self._full = Lock()
        self._full.acquire()

    def put(self, value: object) -> None:
        """Hand a value over."""
        self._value = value
        if self._full.locked():
            try:
                self._full.release()
            except RuntimeError:
                # Another thread has given up the run in between.
                return

    def take(self) -> InFlight:
        """The value, once it is there; the cell lets it go.

        Raises
        ------
        AbortedError
            If the run was given up.
        """
        self._full.acquire()
        value, self._value = self._value, None
        if value is _GIVEN_UP:
            raise AbortedError
        return value  # type: ignore[return-value]


@dataclass
class ProgramRun:
    """A program while it runs.

    Attributes
    ----------
    cells
        (tensor, target) → where it is handed over, for all SENDs between devices of this process.
    copies
        (tensor, source, target) → a copy that is enqueued and not yet handed over.
    events
        Name → event that was recorded.
    recorded
        Device name → the events that its streams recorded.
    """

    state: StepState
    cells: Mapping[tuple[str, str], Cell]
    copies: dict[tuple[str, str, str], InFlight] = field(default_factory=dict)
    events: dict[str, torch.Event] = field(default_factory=dict)
    recorded: dict[str, list[torch.Event]] = field(default_factory=dict)

    @property
    def timelines(self) -> Mapping[str, DeviceTimeline]:
        """Device name → its timeline; empty if the run is not recorded."""
        return self.state.timeline or {}

    def give_up(self) -> None:
        """Make every thread stop at the next tensor that it waits for."""
        for cell in self.cells.values():
            cell.put(_GIVEN_UP)


class AbortedError(Exception):
    """Another device failed."""
