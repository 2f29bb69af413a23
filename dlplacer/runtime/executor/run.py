"""One run of a program: its inputs, the values that its devices hold and hand to each other, and when its ops ran."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from dlplacer.runtime.devices.base import InFlight, RuntimeDevice

Values = dict[str, Any]
"""Tensor name → tensor that a device holds; None for an edge that carries only an order."""


@dataclass(frozen=True)
class StepInputs:
    """The inputs of one step: bound tensors by op id, and the number that decides what random ops draw."""

    bound: Mapping[str, Any]
    seed: int


@dataclass(frozen=True, slots=True)
class OpSpan:
    """An op, and when its device turned to it and was done with it."""

    op: str
    start_s: float
    end_s: float


@dataclass
class DeviceTimeline:
    """The marks that one device sets in one step: (op, begin, end) in order.

    An op begins where the op before it ended, or where the last tensor that the device waited for had arrived: the
    runtime's own cost between two ops counts to the second one, and waiting counts to none. `started_ns`: moment of
    ``time.perf_counter_ns`` at the begin; 0 before it.
    """

    marks: list[tuple[str, Any, Any]] = field(default_factory=list)
    started_ns: int = 0
    _origin: Any = None
    _resumed: Any = None

    def begin(self, device: RuntimeDevice) -> None:
        """Called on the device's thread when the program starts there and the device has nothing else to do."""
        self._origin = self._resumed = device.now()
        self.started_ns = time.perf_counter_ns()

    def resume(self, device: RuntimeDevice) -> None:
        """Called when a tensor has arrived that the device waited for."""
        self._resumed = device.now()

    def finish(self, op: str, device: RuntimeDevice) -> None:
        """Called behind an op."""
        end = device.now()
        self.marks.append((op, self._resumed, end))
        self._resumed = end

    def spans(self, device: RuntimeDevice) -> list[OpSpan]:
        """The ops in order, in seconds since the program's start."""
        since = self._origin
        return [
            OpSpan(op, device.elapsed_s(since, begin), device.elapsed_s(since, end)) for op, begin, end in self.marks
        ]


@dataclass
class StepState:
    """What devices hold in one step, from its first program to its last: device name → values, and → timeline.

    `worked_s`: device name → seconds for which the last program has held its thread.
    """

    inputs: StepInputs
    values: dict[str, Values]
    timeline: dict[str, DeviceTimeline] | None = None
    worked_s: dict[str, float] = field(default_factory=dict)


class AbortedError(Exception):
    """Another device failed."""


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
        # Another thread may give up the run at the same time.
        with contextlib.suppress(RuntimeError):
            self._full.release()

    def take(self) -> InFlight:
        """The value, once it is there; AbortedError if the run was given up."""
        self._full.acquire()
        value, self._value = self._value, None
        if value is _GIVEN_UP:
            raise AbortedError
        return value  # type: ignore[return-value]


@dataclass
class ProgramRun:
    """A program while it runs.

    `cells`: (tensor, target) → where it is handed over, for all SENDs between devices of this process. `copies`:
    (tensor, source, target) → a copy that is enqueued and not yet handed over.
    """

    state: StepState
    cells: Mapping[tuple[str, str], Cell]
    copies: dict[tuple[str, str, str], InFlight] = field(default_factory=dict)

    @property
    def timelines(self) -> Mapping[str, DeviceTimeline]:
        """Device name → its timeline; empty if the run is not recorded."""
        return self.state.timeline or {}

    def give_up(self) -> None:
        """Make every thread stop at the next tensor that it waits for."""
        for cell in self.cells.values():
            cell.put(_GIVEN_UP)


class RankLinks(Protocol):
    """Carries tensors to and from the devices of a program that other processes own.

    All but `fail` is called on the thread of the device here.
    """

    def begin(self, device: str) -> None:
        """Before a run: expect the device's messages."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Start moving a tensor, and go on."""

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """Wait for a tensor."""

    def end(self, device: str) -> None:
        """After a run: wait until the device's tensors have left."""

    def fail(self) -> None:
        """End the run in all processes: an action has failed here."""
