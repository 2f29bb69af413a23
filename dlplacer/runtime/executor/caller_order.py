"""What orders the programs of a step and their caller: events between streams, and no waiting of the host."""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
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

    def wait(self) -> None:
        """Wait for the devices.

        Raises
        ------
        RunError
            If the program failed on a device after it was issued.
        """
        for device, streams, end in self.ends:
            try:
                end.synchronize()
            except Exception as error:
                raise RunError(
                    f"run {self.number} of the program failed on {device.name} after its ops were issued: "
                    f"{first_line(error)}; set CUDA_LAUNCH_BLOCKING=1 to have the op named"
                ) from error
            streams.events.give_back([end])


@dataclass
class CallerOrder:
    """Orders the runs of an executor among each other and with the streams of who calls it.

    A program begins after all that the caller has enqueued on its own streams, and the caller's streams go on when all
    devices have ended, as if the program had been enqueued there. So what the caller frees, its own stream may use
    again, and no device begins the next program before all have ended this one.

    Attributes
    ----------
    devices
        Those of the program; where none has streams there is nothing to order.
    exclusive
        Whether runs share memory, so that calls from several threads have to follow each other.
    has_streams
        Whether there is anything to order.
    """

    devices: Sequence[RuntimeDevice]
    exclusive: bool = False
    has_streams: bool = field(init=False)
    _issued: deque[_Issued] = field(default_factory=deque)
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.has_streams = any(streams_of(device) is not None for device in self.devices)

    def turn(self) -> AbstractContextManager[object]:
        """A context for a run, which one thread at a time is in where runs are exclusive."""
        return self._turn if self.exclusive else nullcontext()

    def begin(self) -> "RunOrder":
        """On the caller's thread, before a run.

        Raises
        ------
        RunError
            If an earlier run failed on a device after it was issued.
        """
        if not self.has_streams:
            return RunOrder(self, ())
        self._wait(MOST_AHEAD - 1)
        given = [(streams, streams.caller_event()) for streams in _distinct(self.devices)]
        # The run before may have been another thread's, for which this one's streams do not wait.
        before = [event for _, _, event in self._issued[-1].ends] if self.exclusive and self._issued else []
        return RunOrder(self, given, before)

    def settle(self) -> None:
        """After a failure: wait for the devices, so that what they use may be freed.

        Raises
        ------
        RunError
            If an earlier run failed on a device: CUDA reports that at any later call, and it is why this one failed.
        """
        self._wait(0)
        for streams in _distinct(self.devices):
            streams.backend.synchronize(streams.index)

    def issued(self, ends: Sequence[tuple[RuntimeDevice, Streams, torch.Event]]) -> None:
        """Note the end of a run."""
        with self._lock:
            self._count += 1
            if ends:
                self._issued.append(_Issued(self._count, ends))

    def _wait(self, most: int) -> None:
        """Wait until so many runs are left at most."""
        while True:
            with self._lock:
                if len(self._issued) <= most:
                    return
                oldest = self._issued.popleft()
            oldest.wait()


@dataclass(frozen=True)
class RunOrder:
    """The order of one run.

    Attributes
    ----------
    given
        Events behind what the caller had enqueued before, on every GPU.
    before
        The end of the run before, where runs are exclusive.
    """

    order: CallerOrder
    given: Sequence[tuple[Streams, torch.Event]]
    before: Sequence[torch.Event] = ()

    def enter(self, device: RuntimeDevice) -> None:
        """First on the device's thread."""
        if not self.order.has_streams:
            return
        streams = streams_of(device)
        if streams is not None:
            # Those of all GPUs: what the caller copied here from another one was enqueued there.
            for event in (*(event for _, event in self.given), *self.before):
                streams.wait(COMPUTE_STREAM, event)

    def end(self) -> None:
        """On the caller's thread, when all devices have issued their actions."""
        if not self.order.has_streams:
            return
        ends = [
            (device, streams, streams.record(COMPUTE_STREAM))
            for device in self.order.devices
            if (streams := streams_of(device)) is not None
        ]
        with capturing:
            for _, streams, own in ends:
                # What the step leaves is given back to the stream that made it, while another one may still read it.
                for _, _, end in ends:
                    if end is not own:
                        streams.wait(COMPUTE_STREAM, end)
        for streams, event in self.given:
            streams.caller_waits([end for _, _, end in ends])
            streams.events.give_back([event])
        # Of every device: logical devices of one GPU each copy their own inputs.
        for _, streams, _ in ends:
            streams.finish_reading()
        self.order.issued(ends)


def _distinct(devices: Iterable[RuntimeDevice]) -> list[Streams]:
    """The streams of one device of every GPU."""
    found: dict[torch.device, Streams] = {}
    for device in devices:
        streams = streams_of(device)
        if streams is not None:
            found.setdefault(device.torch_device, streams)
    return list(found.values())
