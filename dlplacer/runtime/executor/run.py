"""One run of a program: its values, transfers and timelines, and its order relative to other runs and streams."""

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
    """The marks of one device in one step: (op, begin, end) in order.

    An op begins when the previous op has ended, or when the last tensor that the device waited for has arrived. So the
    runtime's overhead between two ops counts for the second, and waiting counts for neither. `started_ns`: the value of
    ``time.perf_counter_ns`` when the step begins; 0 before.
    """

    marks: list[tuple[str, Any, Any]] = field(default_factory=list)
    started_ns: int = 0
    _origin: Any = None
    _resumed: Any = None

    def begin(self, device: RuntimeDevice) -> None:
        """Called on the device's thread when the program starts there, while the device is idle."""
        self._origin = self._resumed = device.now()
        self.started_ns = time.perf_counter_ns()

    def resume(self, device: RuntimeDevice) -> None:
        """Called when a tensor that the device waited for has arrived."""
        self._resumed = device.now()

    def finish(self, op: str, device: RuntimeDevice) -> None:
        """Called after an op."""
        end = device.now()
        self.marks.append((op, self._resumed, end))
        self._resumed = end

    def spans(self, device: RuntimeDevice) -> list[tuple[str, float, float]]:
        """The ops in order, each with begin and end in seconds since the program's start."""
        since = self._origin
        return [(op, device.elapsed_s(since, begin), device.elapsed_s(since, end)) for op, begin, end in self.marks]


@dataclass
class StepState:
    """The state of a step over all its programs: device name → values, and in recorded steps, device name → timeline.

    `worked_s`: device name → seconds for which the last program occupied the device's thread.
    """

    inputs: StepInputs
    values: dict[str, Values]
    timelines: Mapping[str, DeviceTimeline] = field(default_factory=dict)
    worked_s: dict[str, float] = field(default_factory=dict)


class AbortedError(Exception):
    """Raised where a device stops because another one failed."""


@dataclass
class ProgramRun:
    """A program while it runs.

    `cells`: (tensor, target) → the reply that carries it, for all SENDs between devices of this process. `copies`:
    (tensor, source, target) → a copy that is enqueued but not yet sent.
    """

    state: StepState
    cells: Mapping[tuple[str, str], Reply[Any]]
    copies: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    def give_up(self) -> None:
        """Make every thread stop at its next receive."""
        for cell in self.cells.values():
            cell.give(None, AbortedError())


class RankLinks:
    """Carries tensors to and from devices that other processes own; this base class discards sent tensors.

    All methods except `fail` are called on the thread of this process's device.
    """

    def begin(self, device: str) -> None:
        """Before a run: prepare to receive the device's tensors."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Start to send a tensor, without waiting for its arrival."""

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """Wait for a tensor, and return it."""
        raise NotImplementedError

    def end(self, device: str) -> None:
        """After a run: wait until all tensors of the device have been sent."""

    def fail(self) -> None:
        """End the run in all processes after a failure here."""


MOST_AHEAD = 2
"""Most programs issued but not done: enough to keep devices busy, few enough for early errors and little memory."""


@dataclass(frozen=True)
class _Issued:
    """An issued program, and the events at its end."""

    number: int
    ends: Sequence[tuple[RuntimeDevice, Streams, torch.Event]]

    def each(self, ask: Callable[[torch.Event], object]) -> None:
        """Call `ask` on every event; RunError if a device reports a failure."""
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
    """Orders the runs of an executor relative to each other and to the caller's streams.

    A program begins after all work that the caller has enqueued on its own streams. These streams continue when all
    devices are done, as if the program had been enqueued there. So the caller's stream may reuse memory that the caller
    frees, and no device begins the next program before all devices have ended this one. `turn` is held while a run is
    issued, because runs record the same events.
    """

    devices: Sequence[RuntimeDevice]
    _issued: deque[_Issued] = field(default_factory=deque)
    _count: int = 0

    def __post_init__(self) -> None:
        self._streams = [(device, found) for device in self.devices if (found := device.streams) is not None]
        # The streams of the first device on every GPU.
        self._gpus = [*{device.torch_device: streams for device, streams in reversed(self._streams)}.values()]
        self.turn: AbstractContextManager[object] = threading.Lock() if self._streams else nullcontext()

    def begin(self) -> Sequence[torch.Event]:
        """On the caller's thread, before a run: the events that the run waits for, on all GPUs.

        Raises RunError if an earlier run failed on a device after it was issued.
        """
        while len(self._issued) >= MOST_AHEAD:
            self._issued.popleft().each(lambda end: end.synchronize())
        # Another thread may have issued the previous run, and this thread's streams do not wait for it.
        before = [end for issued in list(self._issued)[-1:] for _, _, end in issued.ends]
        # Events of all GPUs: a copy by the caller is enqueued on its source GPU.
        return [*(streams.caller_event() for streams in self._gpus), *before]

    def end(self) -> None:
        """On the caller's thread, after all actions are issued: make later work wait for the run's end."""
        ends = [(device, streams, streams.record(COMPUTE_STREAM)) for device, streams in self._streams]
        if not ends:
            return
        with capturing:
            for _, streams, own in ends:
                # Freed results return to the stream that made them, while another stream may still read them.
                for _, _, end in ends:
                    if end is not own:
                        streams.wait(COMPUTE_STREAM, end)
        for streams in self._gpus:
            streams.caller_waits([end for _, _, end in ends])
        # For every device: even logical devices of one GPU copy their own inputs.
        for _, streams, _ in ends:
            streams.finish_reading()
        self._count += 1
        self._issued.append(_Issued(self._count, ends))

    def settle(self) -> None:
        """After a failure: order enqueued work before any reuse of its memory, without waiting.

        Raises RunError if an earlier run failed on a device: CUDA reports that error at a later call, so it is the
        reason why this run failed.
        """
        for run in self._issued:
            run.each(lambda end: end.query())
        # These calls fail on a lost device; the current error says more.
        with contextlib.suppress(Exception):
            events = [streams.record(name) for _, streams in self._streams for name in streams.names]
            for _, streams in self._streams:
                for event in events:
                    streams.wait(COMPUTE_STREAM, event)
            for streams in self._gpus:
                streams.caller_waits(events)
