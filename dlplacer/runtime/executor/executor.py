"""Runs a program on devices. It decides nothing: every device takes its actions in order."""

import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed, wait
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import Any

import torch

from dlplacer.core.errors import RunError, first_line
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.transfer import brought
from dlplacer.runtime.executor.caller_order import CallerOrder, RunOrder
from dlplacer.runtime.executor.compile_program import StepInputs, Values, compile_op
from dlplacer.runtime.executor.device_run import AbortedError, DeviceRun, Inbox, abort
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.process_links import ProcessLinks
from dlplacer.runtime.executor.stream_steps import compile_stream_action
from dlplacer.runtime.program.actions import Action, Compute, Copy, Free, Recv, Send, StreamAction
from dlplacer.runtime.program.program import Program

_submitting = Lock()


@dataclass
class StepState:
    """What devices hold in one step, from its first program to its last.

    Attributes
    ----------
    values
        Device name → tensors held.
    timeline
        Device name → when its ops ran, if that is recorded.
    """

    inputs: StepInputs
    values: dict[str, Values]
    timeline: dict[str, DeviceTimeline] | None = None


Step = Callable[[DeviceRun], None]


class Executor:
    """A program, compiled for its devices.

    Parameters
    ----------
    devices
        Name in the program → device; those of the program that are not among them are reached through `links`.
    """

    def __init__(
        self,
        graph: OpGraph,
        executable: Executable,
        program: Program,
        devices: Mapping[str, RuntimeDevice],
        updater: Updater,
        links: ProcessLinks | None = None,
    ) -> None:
        self._links = links
        self._graph = graph
        self._executable = executable
        self._devices = devices
        self._updater = updater
        self._order = CallerOrder(list(devices.values()))
        self._steps = {name: self._compile_all(name, program.actions[name]) for name in devices}

    def start(self, inputs: StepInputs, record: bool = False) -> StepState:
        """The state with which a step begins."""
        timeline = {name: DeviceTimeline() for name in self._devices} if record else None
        return StepState(inputs, {name: dict(inputs.numbers) for name in self._devices}, timeline)

    def run(self, state: StepState) -> None:
        """Run the program: devices without streams have ended when it returns, for others the caller's streams wait.

        A recorded run waits for all.

        Raises
        ------
        RunError
            If an op fails; names the op, its module and its device. The other devices stop at their next receive. What
            fails on a GPU after it was issued is raised by one of the next runs, or where a result is read.
        """
        order = self._order.begin()
        inboxes: dict[str, Inbox] = {name: queue.SimpleQueue() for name in self._devices}
        events: dict[str, torch.Event] = {}
        rows = {
            name: DeviceRun(device, state.values[name], state.inputs, inboxes, name, events, timeline=timeline)
            for name, device in self._devices.items()
            for timeline in [None if state.timeline is None else state.timeline[name]]
        }
        tasks = {name: self._task(row, order) for name, row in rows.items()}
        futures: list[Future[Any]] = []
        if self._links is not None:
            self._links.begin()
        try:
            # Two programs at once must queue in the same order on all devices, or they wait for each other.
            with _submitting:
                for name, device in self._devices.items():
                    futures.append(device.submit(tasks[name]))
        except BaseException as reason:
            if self._links is not None:
                self._links.fail(reason)
            abort(inboxes)
            wait(futures)
            raise
        try:
            _end(futures)
            order.end()
        except Exception:
            self._order.settle()
            raise
        for row in rows.values():
            row.give_back_events()

    def _task(self, row: DeviceRun, order: RunOrder) -> Callable[[], None]:
        steps, device, timeline, inboxes = self._steps[row.name], row.device, row.timeline, row.inboxes

        def task() -> None:
            try:
                order.enter(device)
                if timeline is not None:
                    device.synchronize()
                    timeline.begin(device)
                # Grad mode is local to a thread: without this every op would record an autograd graph.
                with torch.no_grad():
                    for step in steps:
                        step(row)
                if timeline is not None:
                    device.synchronize()
            except BaseException as error:
                if self._links is not None and not isinstance(error, AbortedError):
                    self._links.fail(error)
                abort(inboxes)
                raise

        return task

    def _compile_all(self, name: str, actions: Iterable[Action]) -> list[Step]:
        """One function for each action; one for all frees in a row."""
        steps: list[Step] = []
        copied: set[tuple[str, str]] = set()
        for frees, group in groupby(actions, key=lambda action: isinstance(action, Free)):
            if frees:
                steps.append(_free_all([action.tensor for action in group if isinstance(action, Free)]))
            else:
                steps += [self._compile(name, action, copied) for action in group if not isinstance(action, Free)]
        return steps

    def _compile(self, name: str, action: Compute | Send | Recv | StreamAction, copied: set[tuple[str, str]]) -> Step:
        """The function for an action.

        Parameters
        ----------
        copied
            (tensor, target) that the device has copied and not sent; the action may change it.
        """
        if isinstance(action, Compute):
            return self._compile_compute(name, action.op)
        if isinstance(action, Recv):
            tensor = action.tensor
            if self._links is not None and action.source not in self._devices:
                return _receive_from_away(self._links, name, action)
            return lambda row: row.receive(tensor)
        if isinstance(action, Send):
            return self._compile_send(name, action, copied)
        target = None
        if isinstance(action, Copy):
            copied.add((action.tensor, action.target))
            target = self._devices.get(action.target)
        return compile_stream_action(action, self._devices[name], target)

    def _compile_send(self, name: str, action: Send, copied: set[tuple[str, str]]) -> Step:
        key, tensor, target, links = (action.tensor, action.target), action.tensor, action.target, self._links
        away = links if target not in self._devices else None
        if key in copied:
            copied.remove(key)
            if away is not None:
                return lambda row: away.send(tensor, name, target, row.copies.pop(key))
            return lambda row: row.inboxes[target].put((tensor, row.copies.pop(key)))
        if away is not None:
            return lambda row: away.send(tensor, name, target, row.values[tensor])
        device = self._devices[target]

        def send(row: DeviceRun) -> None:
            try:
                in_flight = row.device.send(row.values[tensor], device)
            except Exception as error:
                where = f"from {row.device.name} to {device.name}"
                raise RunError(f"sending tensor {tensor!r} {where} failed: {first_line(error)}") from error
            row.inboxes[target].put((tensor, in_flight))

        return send

    def _compile_compute(self, name: str, op: str) -> Step:
        exports = {edge.tensor for edge in self._graph.edges_from[op]}
        exports.update(self._executable.returned.intersection(self._executable.codes[op].results))
        run = compile_op(self._executable, op, exports, self._devices[name], self._updater)
        module = self._graph.op(op).module
        where = f" of module {module!r}" if module else ""

        def compute(row: DeviceRun) -> None:
            try:
                run(row.values, row.inputs)
            except Exception as error:
                raise RunError(f"op {op!r}{where} failed on {row.device.name}: {first_line(error)}") from error
            if row.timeline is not None:
                row.timeline.finish(op, row.device)

        return compute


def _end(futures: list["Future[Any]"]) -> None:
    """Wait for all, and raise what the first to fail has raised.

    Nothing here refers to the error afterwards: what the failed step held is freed once the caller drops the error.
    """
    done = error = failure = None
    for done in as_completed(futures):
        error = done.exception()
        if failure is None and not isinstance(error, AbortedError):
            failure = error
    futures.clear()
    # An error refers to the frames that it passed, and they to its step: as long as a frame refers to the error, the
    # cycle keeps the tensors of the failed step until the garbage collector runs.
    done = error = None
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None


def _free_all(tensors: Sequence[str]) -> Step:
    def free(row: DeviceRun) -> None:
        values = row.values
        for tensor in tensors:
            del values[tensor]

    return free


def _receive_from_away(links: ProcessLinks, here: str, action: Recv) -> Step:
    def receive(row: DeviceRun) -> None:
        value = links.receive(action.tensor, action.source, here)
        if value is not None and value.device != row.device.torch_device:
            try:
                value = brought(value, row.device)
            except Exception as error:
                where = f"from {action.source} on {row.device.name}"
                raise RunError(f"receiving tensor {action.tensor!r} {where} failed: {first_line(error)}") from error
        row.values[action.tensor] = value
        row.resume()

    return receive
