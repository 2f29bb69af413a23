"""The order of a step's programs and their caller: events between streams, and no waiting of the host."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from dlplacer.core.errors import RunError, first_line
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, Streams, streams_of
from dlplacer.runtime.devices.stream_backend import capturing

MOST_AHEAD = 2
"""Programs that the host may have issued and the devices not done: enough to keep devices busy, and few enough that a
failure is reported soon, and that memory held for streams that are behind stays bounded."""


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


@dataclass(frozen=True)
class RunOrder:
    """The order of one run: events behind what the caller had enqueued before on every GPU, and of exclusive runs the
    end of the run before.
    """

    given: Sequence[tuple[Streams, torch.Event]]
    before: Sequence[torch.Event] = ()

    def enter(self, device: RuntimeDevice) -> None:
        """First on the device's thread."""
        streams = streams_of(device)
        if streams is not None:
            # Those of all GPUs: what the caller copied here from another one was enqueued there.
            for event in (*(event for _, event in self.given), *self.before):
                streams.wait(COMPUTE_STREAM, event)


@dataclass
class CallerOrder:
    """Orders the runs of an executor among each other and with the streams of who calls it.

    A program begins after all that the caller has enqueued on its own streams, and the caller's streams go on when all
    devices have ended, as if the program had been enqueued there. So what the caller frees, its own stream may use
    again, and no device begins the next program before all have ended this one. Runs that share memory are `exclusive`:
    those of several threads follow each other.
    """

    devices: Sequence[RuntimeDevice]
    exclusive: bool = False
    _issued: deque[_Issued] = field(default_factory=deque)
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._streams = [(device, found) for device in self.devices if (found := streams_of(device)) is not None]
        # The streams of one device of every GPU.
        self._gpus = [*{device.torch_device: streams for device, streams in reversed(self._streams)}.values()]

    def turn(self) -> AbstractContextManager[object]:
        """A context for the issue of a run: one at a time with streams, as runs record the same events again."""
        return self._turn if self.exclusive or self._streams else nullcontext()

    def begin(self) -> RunOrder:
        """On the caller's thread, before a run; RunError if an earlier run failed on a device after it was issued."""
        while (oldest := self._oldest()) is not None:
            oldest.each(lambda end: end.synchronize())
        given = [(streams, streams.caller_event()) for streams in self._gpus]
        # The run before may have been another thread's, for which this one's streams do not wait.
        before = [event for _, _, event in self._issued[-1].ends] if self.exclusive and self._issued else []
        return RunOrder(given, before)

    def end(self, run: RunOrder) -> None:
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
        for streams, _ in run.given:
            streams.caller_waits([end for _, _, end in ends])
        # Of every device: logical devices of one GPU each copy their own inputs.
        for _, streams, _ in ends:
            streams.finish_reading()
        with self._lock:
            self._count += 1
            self._issued.append(_Issued(self._count, ends))

    def settle(self) -> None:
        """After a failure: order all that is enqueued before whatever uses its memory again, without waiting.

        Raises RunError if an earlier run failed on a device: CUDA reports that at any later call, and it is why
        this one failed.
        """
        with self._lock:
            issued = list(self._issued)
        for run in issued:
            run.each(lambda end: end.query())
        # A device that is lost refuses these calls; the error at hand says more.
        with contextlib.suppress(Exception):
            events = [streams.record(name) for _, streams in self._streams for name in streams.names]
            for _, streams in self._streams:
                for event in events:
                    streams.wait(COMPUTE_STREAM, event)
            for streams in self._gpus:
                streams.caller_waits(events)

    def _oldest(self) -> _Issued | None:
        """The run to wait for before another one begins, if any."""
        with self._lock:
            return self._issued.popleft() if len(self._issued) >= MOST_AHEAD else None
