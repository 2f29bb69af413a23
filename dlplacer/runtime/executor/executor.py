"""Run a program on devices. The executor decides nothing: segments, transfers and events are issued in a fixed order.

Each CPU device has a thread; all devices with streams share one. Every thread takes the actions of its devices in the
order of `dlplacer.runtime.program.program.issue_order`, so that no two threads wait for each other.
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
    """Consecutive ops of a device, ready to be called; `home` is the device's name in the program.

    `last`: values read here for the last time; `dropped`: unread values to free. A call first drops all these values.
    `marks`: outputs that carry only an order, and are None. A segment that `draws` random numbers has one op.
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
        """The op whose generated line is in the error's traceback; the first op if there is none."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is getattr(self.function, "__code__", None):
                line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
                match = re.match(r"\s*(\w+) = ", line)
                return self.code.op_of.get(match[1], self.ops[0]) if match else self.ops[0]
            trace = trace.tb_next
        return self.ops[0]


class Step(NamedTuple):
    """A call in the issuing loop, and the message for an error in this call; None keeps the error's own message."""

    call: Callable[[ProgramRun], None]
    message: Callable[[Exception], str | None]


def activate_step(device: RuntimeDevice) -> Step:
    """A step that switches a shared thread to one of its devices."""
    return Step(lambda run: device.activate(), lambda error: f"{device.name} failed: {first_line(error)}")


def send_step(action: Send, home: str, is_here: bool, links: RankLinks) -> Step:
    """A step that sends a tensor, or its enqueued copy, to a device of this process (`is_here`) or of another one."""
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
    """A step that receives a tensor: from `sender`, a device of this process, or over `links` from another process."""
    tensor, source = action.tensor, action.source

    def receive(run: ProgramRun) -> None:
        if sender is not None:
            value, is_away = run.cells[tensor, home].result(), sender.streams is None
        else:
            value = links.receive(tensor, source, home)
            is_away = value is not None and value.device != device.torch_device
        try:
            # The program has already copied a tensor from a device with streams.
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
    """A step for an action on a device's streams; a COPY without `target` goes to the host, for another process.

    `events`: the program's events by name; every run records them again.
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
"""Most actions in one segment: Python's parser needs memory for a whole function at once."""

_submitting = Lock()
_Thread = tuple[tuple[str, ...], tuple[Step, ...]]
"""The names of a thread's devices in the program, and its steps in a run."""


class Executor:
    """A program, compiled for the devices of this process; `links` reach devices of other processes.

    `backend` makes segments callable; recorded runs use the eager backend instead. With `CudaGraphs`, the program must
    be a whole step. `starts`: op → planned start; devices that share a thread issue ops in this order.
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
        """The initial state of a step; with `record`, it has a timeline per device."""
        timelines = {name: DeviceTimeline() for name in self._devices} if record else {}
        return StepState(inputs, {name: {} for name in self._devices}, timelines)

    def run(self, state: StepState) -> None:
        """Run the program: devices without streams are done on return; for the others, the caller's streams wait.

        A recorded run waits for all devices. If an op fails, a RunError names the op, its module and its device, and
        the other devices stop at their next receive. An error on a GPU after issuing is raised by a later run, or when
        a result is read.
        """
        with self._order.turn:
            self._run(state)

    def _run(self, state: StepState) -> None:
        given = self._order.begin()
        run = ProgramRun(state, {key: Reply() for key in self._transfers})
        threads = self._compiled(bool(state.timelines))
        answers: list[Reply[None]] = []
        try:
            # Two concurrent programs must queue in the same order on all devices, or they deadlock.
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
        """Make all devices, including those of other processes, stop at their next receive."""
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
        """The threads and their steps, compiled at first use: most programs are never recorded."""
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
                # A thread without work is not woken.
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
        """Key of ops that may share a segment; None for an op that must be alone, because it draws random numbers."""
        code = self._executable.codes.get(op)
        return None if code is None or code.random else self._is_compiled(op)

    def _segment(self, home: str, actions: Sequence[Action], recorded: bool) -> Segment:
        """The segment of COMPUTE and FREE actions of a device; if `recorded`, it notes the end of every op."""
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
        """An op's tensors that other ops read or the step returns; other results are dropped at once."""
        wanted = {edge.tensor for edge in self._graph.edges_from[op]}
        return wanted | self._executable.returned.intersection(self._executable.codes[op].results)

    @cached_property
    def _lasting(self) -> Mapping[str, frozenset[str]]:
        """Device → its own tensors that are the same in every step; other devices' parameters arrive as new copies."""
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
        """Tensors that outlive the step, or that another process reads; nothing here waits for that process."""
        sends = (action for home in self._devices for action in self._program.actions[home] if isinstance(action, Send))
        return self._executable.returned | {action.tensor for action in sends if action.target not in self._devices}


def _take(steps: Sequence[Step], run: ProgramRun) -> None:
    """Call one step after another; an error becomes a RunError with the step's message, unless the message is None."""
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
    """Wait for all replies, then raise the first error among them."""
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
            # A reference to the error here would be a cycle that keeps the failed step's tensors alive.
            del failure
