"""Actions on streams → the functions that a device's thread calls."""

from collections.abc import Callable

import torch

from dlplacer.core.errors import InternalError
from dlplacer.runtime.devices.base import RuntimeDevice, Value
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, Streams, streams_of
from dlplacer.runtime.executor.device_run import DeviceRun
from dlplacer.runtime.program.actions import Copy, Hold, Record, StreamAction, Sync, Wait

StreamStep = Callable[[DeviceRun, Value], Value]
"""Takes the tensor of a COPY or HOLD, else None, and returns the copy of a COPY, else None."""


def compile_stream_action(action: StreamAction, device: RuntimeDevice, memory: torch.device) -> StreamStep:
    """The function that does what the action says.

    Parameters
    ----------
    memory
        Where a COPY goes.
    """
    if isinstance(action, Sync):
        return _sync(action.event)
    streams = streams_of(device)
    if streams is None:
        raise InternalError(f"{action}: device {device.name!r} has no streams")
    return _compile_on(streams, action, memory)


def _compile_on(streams: Streams, action: Copy | Record | Wait | Hold, memory: torch.device) -> StreamStep:
    stream = action.stream
    if isinstance(action, Record):
        event = action.event

        def record(row: DeviceRun, _: Value) -> None:
            row.events[event] = streams.record(stream)

        return record
    if isinstance(action, Wait):
        awaited = action.event

        def wait(row: DeviceRun, _: Value) -> None:
            streams.wait(stream, row.events[awaited])
            if stream == COMPUTE_STREAM:
                row.resume()

        return wait
    if isinstance(action, Copy):
        return lambda row, value: None if value is None else streams.copy(value, memory, stream)

    def hold(row: DeviceRun, value: Value) -> None:
        if value is not None:
            streams.hold(value, stream)

    return hold


def _sync(event: str) -> StreamStep:
    def sync(row: DeviceRun, _: Value) -> None:
        row.events[event].synchronize()
        row.resume()

    return sync
