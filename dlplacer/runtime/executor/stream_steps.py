"""Actions on streams → the closures that a device's thread calls."""

from collections.abc import Callable

from dlplacer.core.errors import InternalError, RunError, first_line
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, Streams, streams_of
from dlplacer.runtime.executor.device_run import DeviceRun
from dlplacer.runtime.program.actions import Copy, Hold, Record, StreamAction, Sync, Wait

DeviceStep = Callable[[DeviceRun], None]


def compile_stream_action(action: StreamAction, device: RuntimeDevice, target: RuntimeDevice | None) -> DeviceStep:
    """The function that does what the action says, and names it if it fails.

    Parameters
    ----------
    target
        Where a COPY goes; None for the host's memory, through which it goes to another process.
    """
    step = _compile(action, device, target)
    name = device.name

    def named(row: DeviceRun) -> None:
        try:
            step(row)
        except Exception as error:
            raise RunError(f"{action} failed on {name}: {first_line(error)}") from error

    return named


def _compile(action: StreamAction, device: RuntimeDevice, target: RuntimeDevice | None) -> DeviceStep:
    if isinstance(action, Sync):
        return _sync(action.event)
    streams = streams_of(device)
    if streams is None:
        raise InternalError(f"{action}: device {device.name!r} has no streams")
    return _compile_on(streams, action, target)


def _compile_on(streams: Streams, action: Copy | Record | Wait | Hold, target: RuntimeDevice | None) -> DeviceStep:
    stream = action.stream
    if isinstance(action, Record):
        event = action.event

        def record(row: DeviceRun) -> None:
            row.events[event] = recorded = streams.record(stream)
            row.recorded.append(recorded)

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
        memory = HOST_DEVICE if target is None else target.torch_device
        there = None if target is None else streams_of(target)

        def copy(row: DeviceRun) -> None:
            value = row.values[tensor]
            row.copies[key] = None if value is None else streams.copy(value, memory, stream, there)

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
