"""Runs a program on devices. It decides nothing: segments, transfers and events are issued in one order.

CPU devices have a thread each, and all devices with streams share one. Every thread takes the actions of its devices in
the order of `dlplacer.runtime.program.program`, so that no two of them wait for each other.
"""

import contextlib
import functools
import linecache
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import torch

from dlplacer.core.errors import InternalError, RunError, first_line
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.devices.base import HOST_DEVICE, Reply, RuntimeDevice, Worker
from dlplacer.runtime.devices.cuda import COMPUTE_STREAM
from dlplacer.runtime.executor.backends import SegmentBackend, SegmentFunction
from dlplacer.runtime.executor.run import (
    AbortedError,
    CallerOrder,
    DeviceTimeline,
    ProgramRun,
    RankLinks,
    StepInputs,
    StepState,
)
from dlplacer.runtime.executor.segment_graph import LASTING, SegmentGraph, segment_graph
from dlplacer.runtime.executor.stateful_ops import Updater, drawn_with
from dlplacer.runtime.program.program import (
    Action,
    Compute,
    Copy,
    Free,
    Hold,
    Program,
    RecordEvent,
    Recv,
    Send,
    StreamAction,
    Sync,
    Wait,
    issue_order,
)


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


LONGEST = 2000
"""Actions in one segment: the parser's memory is for all of a function at once."""

_submitting = Lock()
_Thread = tuple[tuple[str, ...], tuple[Step, ...]]
"""The names of a thread's devices in the program, and its steps in a run."""


class Executor:
    """A program, compiled for its devices: by name, those of this process. Others are reached through `links`.

    `backend` makes segments callable; for `CudaGraphs` the program is a whole step. Recorded runs call every op.
    Devices that share a thread are issued by the planned `starts` of ops.
    """

    def __init__(
        self,
        graph: OpGraph,
        executable: Executable,
        program: Program,
        devices: Mapping[str, RuntimeDevice],
        updater: Updater,
        backend: SegmentBackend,
        links: RankLinks | None = None,
        starts: Mapping[str, float] | None = None,
    ) -> None:
        self._links = links or RankLinks()
        self.backend = backend
        self._graph, self._executable, self._program = graph, executable, program
        self._updater = updater
        self._devices = devices
        self._starts = starts or {}
        self._order = CallerOrder(list(devices.values()))
        self._transfers = [
            (action.tensor, action.target)
            for name in devices
            for action in program.actions[name]
            if isinstance(action, Send) and action.target in devices
        ]
        self._threads: dict[bool, Sequence[_Thread]] = {}
        self._events: dict[str, torch.Event] = {}

    def start(self, inputs: StepInputs, record: bool = False) -> StepState:
        """The state with which a step begins."""
        timelines = {name: DeviceTimeline() for name in self._devices} if record else {}
        return StepState(inputs, {name: {} for name in self._devices}, timelines)

    def run(self, state: StepState) -> None:
        """Run the program: devices without streams have ended when it returns, for others the caller's streams wait.

        A recorded run waits for all. Raises RunError if an op fails; names the op, its module and its device. The other
        devices stop at their next receive. What fails on a GPU after it was issued is raised by one of the next runs,
        or where a result is read.
        """
        with self._order.turn:
            self._run(state)

    def _run(self, state: StepState) -> None:
        given = self._order.begin()
        run = ProgramRun(state, {key: Reply() for key in self._transfers})
        threads = self._compiled(bool(state.timelines))
        answers: list[Reply[None]] = []
        try:
            # Two programs at once must queue in the same order on all devices, or they wait for each other.
            with _submitting:
                for homes, steps in threads:
                    work = functools.partial(self._issue, homes, steps, run, given)
                    answers.append(self._devices[homes[0]].submit(work))
        except BaseException as reason:
            self._stop(run)
            if isinstance(reason, Exception):
                with contextlib.suppress(Exception):
                    _wait_for(answers)
            raise
        try:
            _wait_for(answers)
            self._order.end()
        except Exception:
            self._stop(run)  # first: a GPU that waits for another process would never settle
            self._order.settle()
            raise
        except BaseException:
            self._stop(run)
            raise

    def _stop(self, run: ProgramRun) -> None:
        """Have all devices stop at their next receive, those of other processes too."""
        self._links.fail()
        run.give_up()

    def _issue(
        self, homes: Sequence[str], steps: Sequence[Step], run: ProgramRun, given: Sequence[torch.Event]
    ) -> None:
        """The work of one thread in a run."""
        begin = time.perf_counter()
        try:
            for name in homes:
                self._begin(name, run, given)
            # Grad mode is local to a thread: without this every op would record an autograd graph.
            with torch.no_grad():
                _take(steps, run)
            for name in homes:
                self._links.end(name)
                if name in run.state.timelines:
                    self._devices[name].synchronize()
        except AbortedError:
            run.give_up()
            raise
        except BaseException:
            self._stop(run)
            raise
        finally:
            run.state.worked_s.update(dict.fromkeys(homes, time.perf_counter() - begin))

    def _begin(self, name: str, run: ProgramRun, given: Sequence[torch.Event]) -> None:
        device = self._devices[name]
        device.activate()
        if (streams := device.streams) is not None:
            for event in given:
                streams.wait(COMPUTE_STREAM, event)
        self._links.begin(name)
        if name in run.state.timelines:
            device.synchronize()
            run.state.timelines[name].begin(device)

    def _compiled(self, recording: bool) -> Sequence[_Thread]:
        """The threads and their steps, compiled when first needed: most programs are never recorded."""
        if recording not in self._threads:
            steps: dict[str, list[Step]] = {name: [] for name in self._devices}
            workers = {name: device.worker for name, device in self._devices.items()}
            homes = {
                worker: tuple(name for name, own in workers.items() if own is worker) for worker in workers.values()
            }
            current: dict[Worker, str] = {}
            for home, actions in issue_order(self._program, self._kind, LONGEST, self._starts):
                if home in self._devices:
                    worker = workers[home]
                    own = steps[homes[worker][0]]
                    if current.get(worker) != home and self._devices[home].streams is not None:
                        own.append(activate_step(self._devices[home]))
                    current[worker] = home
                    own.append(self._step(home, actions, recording))
            self._threads[recording] = [
                (names, tuple(steps[names[0]]))
                for names in homes.values()
                # No thread is woken for nothing.
                if steps[names[0]] or recording or self._devices[names[0]].streams is not None
            ]
        return self._threads[recording]

    def _step(self, home: str, actions: Sequence[Action], recording: bool) -> Step:
        first, device = actions[0], self._devices[home]
        if isinstance(first, Send):
            return send_step(first, home, first.target in self._devices, self._links)
        if isinstance(first, Recv):
            return receive_step(first, home, device, self._devices.get(first.source), self._links)
        if isinstance(first, Compute | Free):
            segment = self._segment(home, actions, recording)
            return Step(segment.call, segment.message)
        target = self._devices.get(first.target) if isinstance(first, Copy) else None
        return stream_step(first, home, device, self._events, target)

    def _kind(self, op: str) -> object:
        """Key of ops that may share a segment; None for an op that draws random numbers and stays alone."""
        code = self._executable.codes.get(op)
        return None if code is None or code.random else self._is_compiled(op)

    def _segment(self, home: str, actions: Sequence[Action], recorded: bool) -> Segment:
        """The segment of these COMPUTE and FREE actions of a device; a recorded one notes when every op ended."""
        ops = tuple(action.op for action in actions if isinstance(action, Compute))
        freed = {action.tensor for action in actions if isinstance(action, Free)}
        made = {name for op in ops for name in self._exported(op)}
        results = {name for op in ops for name in self._executable.codes[op].results}
        outputs = sorted((made & results) - freed)
        given = self._executable, ops, outputs, self._devices[home], self._updater
        code = segment_graph(*given, self._lasting[home], self._fresh, recorded)
        last = frozenset(freed.intersection(code.read))
        backend = self.backend if not recorded and all(map(self._is_compiled, ops)) else SegmentBackend()
        return Segment(
            self._graph,
            home,
            ops,
            code,
            last,
            dropped=tuple(sorted(freed - made - last)),
            marks=tuple(sorted(made - results - freed)),
            draws=any(self._executable.codes[op].random for op in ops),
            recorded=recorded,
            function=backend.function(code) if ops else None,
        )

    def _is_compiled(self, op: str) -> bool:
        return self.backend.refusal(self._executable.codes[op]) is None

    def _exported(self, op: str) -> Collection[str]:
        """Tensors of outgoing edges and of the step's results; the rest is dropped at once."""
        wanted = {edge.tensor for edge in self._graph.edges_from[op]}
        return wanted | self._executable.returned.intersection(self._executable.codes[op].results)

    @cached_property
    def _lasting(self) -> Mapping[str, frozenset[str]]:
        """Device → tensors that are the same in every step; a parameter that came from elsewhere is another copy."""
        return {
            home: frozenset(
                code.value
                for action in self._program.actions[home]
                if isinstance(action, Compute) and (code := self._executable.codes[action.op]).role in LASTING
            )
            for home in self._devices
        }

    @cached_property
    def _fresh(self) -> frozenset[str]:
        """Tensors that outlive the step, or that another process reads, for which nothing here waits."""
        sends = (action for home in self._devices for action in self._program.actions[home] if isinstance(action, Send))
        return self._executable.returned | {action.tensor for action in sends if action.target not in self._devices}


def _take(steps: Sequence[Step], run: ProgramRun) -> None:
    """Call one step after another; an error is raised as the user reads it, with the action in which it occurred."""
    for step in steps:
        try:
            step.call(run)
        except AbortedError:
            raise
        except Exception as error:
            message = step.message(error)
            if message is None:
                raise
            raise RunError(message) from error


def _wait_for(answers: Sequence[Reply[None]]) -> None:
    """Wait for all, and raise what the first of them has raised."""
    failure: Exception | None = None
    for answer in answers:
        try:
            answer.result()
        except AbortedError:
            continue
        except Exception as error:
            failure = failure or error
    if failure is not None:
        try:
            raise failure
        finally:
            # As long as a frame refers to the error, the cycle keeps the tensors of the failed step.
            del failure
