"""Actions on streams → the closures that a device's thread calls."""

from collections.abc import Callable

import torch

from dlplacer.core.errors import InternalError, RunError, first_line
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, Streams, streams_of
from dlplacer.runtime.executor.device_run import DeviceRun
from dlplacer.runtime.program.actions import Copy, Hold, Record, StreamAction, Sync, Wait

DeviceStep = Callable[[DeviceRun], None]


def compile_stream_action(action: StreamAction, device: RuntimeDevice, memory: torch.device) -> DeviceStep:
    """The function that does what the action says, and names it if it fails.

    Parameters
    ----------
    memory
        Where a COPY goes.
    """
    step = _compile(action, device, memory)
    name = device.name

    def named(row: DeviceRun) -> None:
        try:
            step(row)
        except Exception as error:
            raise RunError(f"{action} failed on {name}: {first_line(error)}") from error

    return named


def _compile(action: StreamAction, device: RuntimeDevice, memory: torch.device) -> DeviceStep:
    if isinstance(action, Sync):
        return _sync(action.event)
    streams = streams_of(device)
    if streams is None:
        raise InternalError(f"{action}: device {device.name!r} has no streams")
    return _compile_on(streams, action, memory)


def _compile_on(streams: Streams, action: Copy | Record | Wait | Hold, memory: torch.device) -> DeviceStep:
    stream = action.stream
    if isinstance(action, Record):
        event = action.event

        def record(row: DeviceRun) -> None:
            row.events[event] = streams.record(stream)

        return record
    if isinstance(action, Wait):
        awaited = action.event

        def wait(row: DeviceRun) -> None:
            streams.wait(stream, row.events[awaited])
            if stream == COMPUTE_STREAM:
                row.resume()

        return wait
    tensor = action.tensor
    if isinstance(action, Copy):
        key = tensor, action.target

        def copy(row: DeviceRun) -> None:
            value = row.values[tensor]
            row.copies[key] = None if value is None else streams.copy(value, memory, stream)

        return copy

    def hold(row: DeviceRun) -> None:
        value = row.values[tensor]
        if value is not None:
            streams.hold(value, stream)

    return hold


def _sync(event: str) -> DeviceStep:
    def sync(row: DeviceRun) -> None:
        row.events[event].synchronize()
        row.resume()

    return sync
