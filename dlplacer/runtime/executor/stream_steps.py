"""Actions on streams → the closures that a device's thread calls."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from dlplacer.core.errors import InternalError, RunError
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, Streams, streams_of
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.program.actions import Copy, Record, StreamAction, Sync, Wait


class StreamContext(Protocol):
    """What an action on streams needs of a run.

    Attributes
    ----------
    events
        Name → event, of all devices of the run.
    copies
        (tensor, target) → copy that has not been sent yet.
    """

    device: RuntimeDevice
    values: dict[str, Any]
    timeline: DeviceTimeline | None
    events: dict[str, Any]
    copies: dict[tuple[str, str], Any]


StreamStep = Callable[[StreamContext], None]


def compile_stream_action(action: StreamAction, device: RuntimeDevice, memory: torch.device) -> StreamStep:
    """The function that does what the action says, and names it if it fails.

    Parameters
    ----------
    memory
        Where a COPY goes.
    """
    step = _compile(action, device, memory)
    name = device.name

    def named(row: StreamContext) -> None:
        try:
            step(row)
        except Exception as error:
            first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise RunError(f"{action} failed on {name}: {first_line}") from error

    return named


def _compile(action: StreamAction, device: RuntimeDevice, memory: torch.device) -> StreamStep:
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


def _record(streams: Streams, event: str, stream: str) -> StreamStep:
    def record(row: StreamContext) -> None:
        row.events[event] = streams.record(stream)

    return record


def _wait(streams: Streams, event: str, stream: str) -> StreamStep:
    def wait(row: StreamContext) -> None:
        streams.wait(stream, row.events[event])
        if row.timeline is not None and stream == COMPUTE_STREAM:
            row.timeline.resume(row.device)

    return wait


def _sync(event: str) -> StreamStep:
    def sync(row: StreamContext) -> None:
        row.events[event].synchronize()
        if row.timeline is not None:
            row.timeline.resume(row.device)

    return sync


def _copy(streams: Streams, action: Copy, memory: torch.device) -> StreamStep:
    tensor, key, stream = action.tensor, (action.tensor, action.target), action.stream

    def copy(row: StreamContext) -> None:
        value = row.values[tensor]
        row.copies[key] = None if value is None else streams.copy(value, memory, stream)

    return copy


def _hold(streams: Streams, tensor: str, stream: str) -> StreamStep:
    def hold(row: StreamContext) -> None:
        value = row.values[tensor]
        if value is not None:
            streams.hold(value, stream)

    return hold
