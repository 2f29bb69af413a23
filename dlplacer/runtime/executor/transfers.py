"""The actions that move tensors or order streams, ready to be called by the issuing loop."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from dlplacer.core.errors import InternalError, RunError, first_line
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, brought, streams_of
from dlplacer.runtime.executor.run import ProgramRun, RankLinks
from dlplacer.runtime.program.program import Copy, Hold, Record, Recv, Send, StreamAction, Sync, Wait


class Step(NamedTuple):
    """A call of the issuing loop, and what it tells the user if that fails: None if the error says it itself."""

    call: Callable[[ProgramRun], None]
    message: Callable[[Exception], str | None]


def activate_step(device: RuntimeDevice) -> Step:
    """Turns a thread that several devices share to one of them."""
    return Step(lambda run: device.activate(), lambda error: f"{device.name} failed: {first_line(error)}")


def send_step(
    action: Send, home: str, device: RuntimeDevice, target: RuntimeDevice | None, links: RankLinks | None
) -> Step:
    """Hands a tensor, or its copy that is under way, to another device: of another process if `target` is None."""
    tensor, name = action.tensor, action.target

    def send(run: ProgramRun) -> None:
        copied: Any = run.copies.pop((tensor, home, name), None)
        value = run.state.values[home][tensor] if copied is None else copied
        if target is not None:
            run.cells[tensor, name].put(device.send(value, target) if copied is None else copied)
        elif links is not None:
            links.send(tensor, home, name, value)

    def message(error: Exception) -> str | None:
        where = None if target is None else f"from {device.name} to {target.name}"
        return where and f"sending tensor {tensor!r} {where} failed: {first_line(error)}"

    return Step(send, message)


def receive_step(action: Recv, home: str, device: RuntimeDevice, links: RankLinks | None) -> Step:
    """Takes a tensor that another device has sent: of another process if there are `links`."""
    tensor = action.tensor

    def receive(run: ProgramRun) -> None:
        if links is None:
            value = device.receive(run.cells[tensor, home].take())
        else:
            value = links.receive(tensor, action.source, home)
            if value is not None and value.device != device.torch_device:
                try:
                    value = brought(value, device)
                except Exception as error:
                    where = f"from {action.source} on {device.name}"
                    raise RunError(f"receiving tensor {tensor!r} {where} failed: {first_line(error)}") from error
        run.state.values[home][tensor] = value
        if home in run.timelines:
            run.timelines[home].resume(device)

    return Step(receive, lambda error: None)


def stream_step(
    action: StreamAction,
    home: str,
    device: RuntimeDevice,
    events: dict[str, torch.Event],
    target: RuntimeDevice | None = None,
) -> Step:
    """An action on the streams of a device; a COPY without a `target` goes through the host to another process.

    `events`: those of the program by name, recorded again in every run.
    """
    streams = streams_of(device)

    def enqueue(run: ProgramRun) -> None:
        if isinstance(action, Sync):
            events[action.event].synchronize()
        elif streams is None:
            raise InternalError(f"{action}: device {device.name!r} has no streams")
        elif isinstance(action, Record):
            events[action.event] = streams.record(action.stream, events.get(action.event))
        elif isinstance(action, Wait):
            streams.wait(action.stream, events[action.event])
        elif (value := run.state.values[home][action.tensor]) is not None and isinstance(action, Hold):
            streams.hold(value, action.stream)
        elif value is not None and isinstance(action, Copy):
            memory = HOST_DEVICE if target is None else target.torch_device
            there = None if target is None else streams_of(target)
            run.copies[action.tensor, home, action.target] = streams.copy(value, memory, action.stream, there)
        waits = isinstance(action, Sync) or (isinstance(action, Wait) and action.stream == COMPUTE_STREAM)
        if waits and home in run.timelines:
            run.timelines[home].resume(device)

    return Step(enqueue, lambda error: f"{action} failed on {device.name}: {first_line(error)}")
