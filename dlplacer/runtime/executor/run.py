"""One run of a program: its values, hand-overs and timelines, and its order among runs and caller's streams."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from dlplacer.core.errors import RunError, first_line
from dlplacer.runtime.devices.base import Reply, RuntimeDevice
from dlplacer.runtime.devices.cuda import COMPUTE_STREAM, Streams, capturing

Values = dict[str, Any]
"""Tensor name → tensor that a device holds; None for an edge that carries only an order."""


@dataclass(frozen=True)
class StepInputs:
    """The inputs of one step: bound tensors by op id, and the seed of the random ops."""

    bound: Mapping[str, Any]
    seed: int


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

    def spans(self, device: RuntimeDevice) -> list[tuple[str, float, float]]:
        """The ops in order, each with begin and end in seconds since the program's start."""
        since = self._origin
        return [(op, device.elapsed_s(since, begin), device.elapsed_s(since, end)) for op, begin, end in self.marks]


@dataclass
class StepState:
    """The state of a step from its first program to its last: device name → values, and → timeline if it is recorded.

    `worked_s`: device name → seconds for which the last program has occupied its thread.
    """

    inputs: StepInputs
    values: dict[str, Values]
    timelines: Mapping[str, DeviceTimeline] = field(default_factory=dict)
    worked_s: dict[str, float] = field(default_factory=dict)


class AbortedError(Exception):
    """Another device failed."""


@dataclass
class ProgramRun:
    """A program while it runs.

    `cells`: (tensor, target) → where it is handed over, for all SENDs between devices of this process. `copies`:
    (tensor, source, target) → a copy that is enqueued and not yet handed over.
    """

    state: StepState
    cells: Mapping[tuple[str, str], Reply[Any]]
    copies: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    def give_up(self) -> None:
        """Make every thread stop at the next tensor that it waits for."""
        for cell in self.cells.values():
            cell.give(None, AbortedError())


class RankLinks:
    """Carries tensors to and from the devices of a program that other processes own; this one sends into nothing.

    All but `fail` is called on the thread of the device here.
    """

    def begin(self, device: str) -> None:
        """Before a run: expect the device's messages."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Start moving a tensor, and go on."""

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """Wait for a tensor."""
        raise NotImplementedError

    def end(self, device: str) -> None:
        """After a run: wait until the device's tensors have left."""

    def fail(self) -> None:
        """End the run in all processes: an action has failed here."""


MOST_AHEAD = 2
"""Programs issued and not done: devices stay busy, failures are reported soon, late streams hold little memory."""


@dataclass(frozen=True)
class _Issued:
    """A program that was issued, and the events of its end."""

    number: int
    ends: Sequence[tuple[RuntimeDevice, Streams, torch.Event]]

    def each(self, ask: Callable[[torch.Event], object]) -> None:
        """Ask every event; RunError if one says that the program failed on its device."""
        for device, _, end in self.ends:
            try:
                ask(end)
            except Exception as error:
                raise RunError(
                    f"run {self.number} of the program failed on {device.name} after its ops were issued: "
                    f"{first_line(error)}; set CUDA_LAUNCH_BLOCKING=1 to have the op named"
                ) from error


@dataclass
class CallerOrder:
    """Orders the runs of an executor among each other and with the streams of who calls it.

    A program begins after all that the caller has enqueued on its own streams, and the caller's streams go on when all
    devices have ended, as if the program had been enqueued there. So what the caller frees, its own stream may use
    again, and no device begins the next program before all have ended this one. `turn` is held while a run is issued:
    runs record the same events again.
    """

    devices: Sequence[RuntimeDevice]
    _issued: deque[_Issued] = field(default_factory=deque)
    _count: int = 0

    def __post_init__(self) -> None:
        self._streams = [(device, found) for device in self.devices if (found := device.streams) is not None]
        # The streams of one device of every GPU.
        self._gpus = [*{device.torch_device: streams for device, streams in reversed(self._streams)}.values()]
        self.turn: AbstractContextManager[object] = threading.Lock() if self._streams else nullcontext()

    def begin(self) -> Sequence[torch.Event]:
        """On the caller's thread, before a run: the events that it waits for, on all GPUs.

        Raises RunError if an earlier run failed on a device after it was issued.
        """
        while len(self._issued) >= MOST_AHEAD:
            self._issued.popleft().each(lambda end: end.synchronize())
        # The run before may have been another thread's, for which this one's streams do not wait.
        before = [end for issued in list(self._issued)[-1:] for _, _, end in issued.ends]
        # Those of all GPUs: what the caller copied to one from another was enqueued there.
        return [*(streams.caller_event() for streams in self._gpus), *before]

    def end(self) -> None:
        """On the caller's thread, when all devices have issued their actions."""
        ends = [(device, streams, streams.record(COMPUTE_STREAM)) for device, streams in self._streams]
        if not ends:
            return
        with capturing:
            for _, streams, own in ends:
                # What the step leaves is given back to the stream that made it, while another one may still read it.
                for _, _, end in ends:
                    if end is not own:
                        streams.wait(COMPUTE_STREAM, end)
        for streams in self._gpus:
            streams.caller_waits([end for _, _, end in ends])
        # Of every device: logical devices of one GPU each copy their own inputs.
        for _, streams, _ in ends:
            streams.finish_reading()
        self._count += 1
        self._issued.append(_Issued(self._count, ends))

    def settle(self) -> None:
        """After a failure: order all that is enqueued before whatever uses its memory again, without waiting.

        Raises RunError if an earlier run failed on a device: CUDA reports that at any later call, and it is why
        this one failed.
        """
        for run in self._issued:
            run.each(lambda end: end.query())
        # A device that is lost refuses these calls; the error at hand says more.
        with contextlib.suppress(Exception):
            events = [streams.record(name) for _, streams in self._streams for name in streams.names]
            for _, streams in self._streams:
                for event in events:
                    streams.wait(COMPUTE_STREAM, event)
            for streams in self._gpus:
                streams.caller_waits(events)
