"""Actions on streams → the closures that a device's thread calls."""

from collections.abc import Callable

import torch

from dlplacer.core.errors import InternalError, RunError, first_line
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, Streams, streams_of
from dlplacer.runtime.executor.device_run import DeviceRun
from dlplacer.runtime.program.actions import Copy, Record, StreamAction, Sync, Wait

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
    if isinstance(action, Record):
        return _record(streams, action.event, action.stream)
    if isinstance(action, Wait):
        return _wait(streams, action.event, action.stream)
    if isinstance(action, Copy):
        return _copy(streams, action, memory)
    return _hold(streams, action.tensor, action.stream)


def _record(streams: Streams, event: str, stream: str) -> DeviceStep:
    def record(row: DeviceRun) -> None:
        row.events[event] = streams.record(stream)

    return record


def _wait(streams: Streams, event: str, stream: str) -> DeviceStep:
    def wait(row: DeviceRun) -> None:
        streams.wait(stream, row.events[event])
        if stream == COMPUTE_STREAM:
            row.resume()

    return wait


def _sync(event: str) -> DeviceStep:
    def sync(row: DeviceRun) -> None:
        row.events[event].synchronize()
        row.resume()

    return sync


def _copy(streams: Streams, action: Copy, memory: torch.device) -> DeviceStep:
    tensor, key, stream = action.tensor, (action.tensor, action.target), action.stream

    def copy(row: DeviceRun) -> None:
        value = row.values[tensor]
        row.copies[key] = None if value is None else streams.copy(value, memory, stream)

    return copy


def _hold(streams: Streams, tensor: str, stream: str) -> DeviceStep:
    def hold(row: DeviceRun) -> None:
        value = row.values[tensor]
        if value is not None:
            streams.hold(value, stream)

    return hold
