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
        self._streams = [(device, found) for device in self.devices if (found := streams_of(device)) is not None]
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
