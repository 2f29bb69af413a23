"""The calls of the issuing loop: segments, and the actions that move tensors or order streams."""

import functools
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dlplacer.core.errors import InternalError, RunError, first_line
from dlplacer.core.graph import OpGraph
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.streams import COMPUTE_STREAM
from dlplacer.runtime.executor.backends import SegmentFunction
from dlplacer.runtime.executor.run import ProgramRun, RankLinks
from dlplacer.runtime.executor.segment_graph import SegmentGraph
from dlplacer.runtime.executor.stateful_ops import drawn_with
from dlplacer.runtime.program.program import Copy, Hold, RecordEvent, Recv, Send, StreamAction, Sync, Wait


@dataclass(frozen=True)
class Segment:
    """Consecutive ops of a device, ready to be called; `home` is its name in the program. Without ops it only frees.

    While it runs the device no longer holds the values that it reads `last`, or frees unread (`dropped`). Its `marks`
    only carry an order: they are None. If it `draws` random numbers, it has one op.
    """

    graph: OpGraph
    home: str
    ops: tuple[str, ...]
    code: SegmentGraph
    last: frozenset[str]
    dropped: tuple[str, ...]
    marks: tuple[str, ...]
    draws: bool
    recorded: bool
    function: SegmentFunction | None

    def call(self, run: ProgramRun) -> None:
        """Run the ops on the values that the device holds."""
        values, inputs, last = run.state.values[self.home], run.state.inputs, self.last
        for name in self.dropped:
            del values[name]
        if self.function is None:
            return
        boxed = [values.pop(name) if name in last else values[name] for name in self.code.read]
        boxed += [inputs.bound[op] for op in self.code.bound]
        if self.recorded:
            boxed.insert(0, functools.partial(run.state.timelines[self.home].finish, device=self.code.device))
        if self.draws:
            with drawn_with(inputs.seed, self.ops[0], self.code.device.torch_device):
                made = self.function(boxed)
        else:
            made = self.function(boxed)
        values.update(zip(self.code.outputs, made, strict=True))
        for name in self.marks:
            values[name] = None

    def message(self, error: Exception) -> str:
        """A message for the user that names the op that failed."""
        op = self.graph.op(self._failing(error))
        where = f" of module {op.module!r}" if op.module else ""
        return f"op {op.id!r}{where} failed on {self.code.device.name}: {first_line(error)}"

    def _failing(self, error: Exception) -> str:
        """The op whose generated line the error passed; the first op if the code is not ours."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is getattr(self.function, "__code__", None):
                line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
                match = re.match(r"\s*(\w+) = ", line)
                return self.code.op_of.get(match[1], self.ops[0]) if match else self.ops[0]
            trace = trace.tb_next
        return self.ops[0]


class Step(NamedTuple):
    """A call of the issuing loop, and its message for the user on failure; None if the error has its own."""

    call: Callable[[ProgramRun], None]
    message: Callable[[Exception], str | None]


def activate_step(device: RuntimeDevice) -> Step:
    """Turns a thread that several devices share to one of them."""
    return Step(lambda run: device.activate(), lambda error: f"{device.name} failed: {first_line(error)}")


def send_step(action: Send, home: str, is_here: bool, links: RankLinks) -> Step:
    """Hands a tensor, or its copy that is under way, to another device, of another process unless it `is_here`."""
    tensor, name = action.tensor, action.target

    def send(run: ProgramRun) -> None:
        copied: Any = run.copies.pop((tensor, home, name), None)
        value = run.state.values[home][tensor] if copied is None else copied
        if is_here:
            run.cells[tensor, name].give(value)
        else:
            links.send(tensor, home, name, value)

    return Step(send, lambda error: None)


def receive_step(
    action: Recv, home: str, device: RuntimeDevice, sender: RuntimeDevice | None, links: RankLinks
) -> Step:
    """Takes a tensor that another device has sent: of another process, over `links`, if there is no `sender` here."""
    tensor, source = action.tensor, action.source

    def receive(run: ProgramRun) -> None:
        if sender is not None:
            value, is_away = run.cells[tensor, home].result(), sender.streams is None
        else:
            value = links.receive(tensor, source, home)
            is_away = value is not None and value.device != device.torch_device
        try:
            # What a device with streams sends to another one, the program has copied.
            run.state.values[home][tensor] = device.receive(value) if is_away else value
        except Exception as error:
            where = f"from {source} on {device.name}"
            raise RunError(f"receiving tensor {tensor!r} {where} failed: {first_line(error)}") from error
        if home in run.state.timelines:
            run.state.timelines[home].resume(device)

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
    streams = device.streams

    def enqueue(run: ProgramRun) -> None:
        if isinstance(action, Sync):
            events[action.event].synchronize()
        elif streams is None:
            raise InternalError(f"{action}: device {device.name!r} has no streams")
        elif isinstance(action, RecordEvent):
            events[action.event] = streams.record(action.stream, events.get(action.event))
        elif isinstance(action, Wait):
            streams.wait(action.stream, events[action.event])
        elif (value := run.state.values[home][action.tensor]) is not None and isinstance(action, Hold):
            streams.hold(value, action.stream)
        elif value is not None and isinstance(action, Copy):
            memory = HOST_DEVICE if target is None else target.torch_device
            there = None if target is None else target.streams
            run.copies[action.tensor, home, action.target] = streams.copy(value, memory, action.stream, there)
        waits = isinstance(action, Sync) or (isinstance(action, Wait) and action.stream == COMPUTE_STREAM)
        if waits and home in run.state.timelines:
            run.state.timelines[home].resume(device)

    return Step(enqueue, lambda error: f"{action} failed on {device.name}: {first_line(error)}")
