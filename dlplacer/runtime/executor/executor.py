"""Runs a program on devices. It decides nothing: every device takes its actions in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock

import torch

from dlplacer.core.errors import RunError
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.executor.caller_order import CallerOrder, RunOrder
from dlplacer.runtime.executor.compile_program import ActionCompiler, CompiledActions, slots_of
from dlplacer.runtime.executor.device_run import DeviceRun, RankLinks
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.graph_capture import GraphCapture
from dlplacer.runtime.executor.graph_rules import GraphRules
from dlplacer.runtime.executor.hand_over import AbortedError, Inbox
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.step_inputs import StepInputs, Values
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


class Executor:
    """A program, compiled for its devices.

    Parameters
    ----------
    devices
        Name in the program → device; those of the program that are not among them are reached through `links`.
    graph_rules
        What is captured as CUDA graphs and replayed; for programs of a whole step, as values are left where they are
        until the next run. Recorded runs issue every op.

    Attributes
    ----------
    graphs
        What has been captured; None without rules.
    links
        As given.
    """

    def __init__(
        self,
        graph: OpGraph,
        executable: Executable,
        program: Program,
        devices: Mapping[str, RuntimeDevice],
        updater: Updater,
        links: RankLinks | None = None,
        graph_rules: GraphRules | None = None,
    ) -> None:
        self.links = links
        self._program = program
        self._devices = devices
        self._order = CallerOrder(list(devices.values()), exclusive=graph_rules is not None)
        self.graphs = None if graph_rules is None else GraphCapture(graph, executable, devices, graph_rules)
        slots = slots_of(program.actions, devices)
        self._sizes = {name: sum(target == name for _, target in slots) for name in devices}
        self._compiler = ActionCompiler(graph, executable, devices, slots, updater, links)
        self._compiled: dict[bool, Mapping[str, CompiledActions]] = {}

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
        with self._order.turn():
            self._run(state)

    def _run(self, state: StepState) -> None:
        order = self._order.begin()
        inboxes = {name: Inbox(size) for name, size in self._sizes.items()}
        events: dict[str, torch.Event] = {}
        recording = state.timeline is not None
        timelines = state.timeline or {}
        rows = {
            name: DeviceRun(device, state.values[name], state.inputs, inboxes, events, timelines.get(name))
            for name, device in self._devices.items()
        }
        # Not by the devices' futures: a Ctrl-C that interrupts who waits for them may leave their locks taken, and the
        # device's thread then waits for ever.
        ended: SimpleQueue[BaseException | None] = SimpleQueue()
        tasks = {
            name: self._task(compiled, [rows[own] for own in compiled.devices], order, ended)
            for name, compiled in self._functions(recording).items()
        }
        if self.links is not None:
            self.links.begin()
        started = 0
        try:
            # Two programs at once must queue in the same order on all devices, or they wait for each other.
            with _submitting:
                for name, task in tasks.items():
                    self._devices[name].submit(task)
                    started += 1
        except BaseException as reason:
            self._stop(reason, inboxes)
            for _ in range(started if isinstance(reason, Exception) else 0):
                ended.get()
            raise
        try:
            _end(ended, started)
            order.end()
        except Exception:
            self._order.settle()
            raise
        except BaseException as reason:
            self._stop(reason, inboxes)
            raise
        for row in rows.values():
            row.give_back_events()

    def _stop(self, reason: BaseException, inboxes: Mapping[str, Inbox]) -> None:
        """Have all devices stop at their next receive, those of other processes too."""
        if self.links is not None:
            self.links.fail(reason)
        _abort(inboxes)

    def _task(
        self,
        compiled: CompiledActions,
        rows: Sequence[DeviceRun],
        order: RunOrder,
        ended: "SimpleQueue[BaseException | None]",
    ) -> Callable[[], None]:
        """What one device's thread does in a run; at its end it puts what has failed there, or None."""

        def task() -> None:
            failure: BaseException | None = None
            try:
                for row in rows:
                    order.enter(row.device)
                    if row.timeline is not None:
                        row.device.synchronize()
                        row.timeline.begin(row.device)
                # Grad mode is local to a thread: without this every op would record an autograd graph.
                with torch.no_grad():
                    for function in compiled.functions:
                        function(rows)
                for row in rows:
                    if row.timeline is not None:
                        row.device.synchronize()
            except BaseException as error:
                failure = error
                failure = self._named(error, compiled)
                if self.links is not None and not isinstance(error, AbortedError):
                    self.links.fail(failure)
                _abort(rows[0].inboxes)
                if not isinstance(error, Exception):
                    raise
            finally:
                ended.put(failure)
                # The error refers to this frame: were it to refer to the error, the cycle would keep the tensors of the
                # failed step until the garbage collector runs.
                del failure

        return task

    def _functions(self, recording: bool) -> Mapping[str, CompiledActions]:
        """Device whose thread calls them → functions, compiled when first needed: most programs are never recorded."""
        if recording not in self._compiled:
            actions, compiled, graphs = self._program.actions, self._compiler.compiled, self.graphs
            if graphs is not None and not recording:
                self._compiled[recording] = {
                    name: graphs.compiled(name, self._compiler, actions[name]) for name in self._devices
                }
            else:
                self._compiled[recording] = {
                    name: compiled((name,), [(name, action) for action in actions[name]], recording)
                    for name, device in self._devices.items()
                    # Waking a thread for nothing costs a step of short ops some hundredths of its time.
                    if actions[name] or recording or streams_of(device) is not None
                }
        return self._compiled[recording]

    def _named(self, error: BaseException, compiled: CompiledActions) -> BaseException:
        """The error as the user reads it: with the action in which it occurred, if that is not in it."""
        if not isinstance(error, Exception) or isinstance(error, AbortedError):
            return error
        entry = compiled.failing(error)
        message = None if entry is None else self._compiler.message(entry, error)
        if message is None:
            return error
        named = RunError(message)
        named.__cause__ = error
        return named


def _abort(inboxes: Mapping[str, Inbox]) -> None:
    """Make every device stop where what it needs is not there."""
    for inbox in inboxes.values():
        inbox.abort()


def _end(ended: "SimpleQueue[BaseException | None]", count: int) -> None:
    """Wait for all, and raise what the first to fail has raised.

    Nothing here refers to the error afterwards: what the failed step held is freed once the caller drops the error.
    """
    error = failure = None
    for _ in range(count):
        error = ended.get()
        if failure is None and not isinstance(error, AbortedError):
            failure = error
    # An error refers to the frames that it passed, and they to its step: as long as a frame refers to the error, the
    # cycle keeps the tensors of the failed step until the garbage collector runs.
    error = None
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None
