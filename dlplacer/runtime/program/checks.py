"""Check a program before it runs: it ends, ops find their inputs, and streams are ordered.

One happens-before relation covers threads and streams. A thread or stream works in order; work that a thread enqueues
follows all that the thread has done; WAIT and SYNC follow the work queued before RECORD; RECV follows SEND; a program
follows the previous one. The rules: ops and copies read a tensor only after it is written; memory is freed after its
last use on every stream; when a program ends, all streams have ended.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.runtime.devices.cuda import COMPUTE_STREAM
from dlplacer.runtime.program.program import (
    HOST_MEMORY,
    Action,
    Compute,
    Copy,
    DeviceMemorySpace,
    Free,
    Hold,
    MemorySpaces,
    Program,
    RecordEvent,
    Recv,
    Send,
    Sync,
    Wait,
    interleaved,
)

_Line = tuple[str, str]
"""A timeline: a device, and one of its streams or `_THREAD`; the work on one timeline happens in order."""
_Clock = dict[_Line, int]
"""Timeline → number of its latest moment that has happened."""
_THREAD = ""


def require_no_races(
    graph: OpGraph, programs: Sequence[Program], spaces: MemorySpaces | None = None, empty: Collection[str] = ()
) -> None:
    """Raise InternalError if `races` raises one, or finds a race; the error names the unordered actions."""
    if found := races(graph, programs, spaces, empty):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InternalError(f"the program has a race: {found[0]}{more}")


def races(
    graph: OpGraph, programs: Sequence[Program], spaces: MemorySpaces | None = None, empty: Collection[str] = ()
) -> list[str]:
    """The races in programs that run one after another, one line of text per race.

    Raises InternalError unless the programs end, and every op runs once and finds its inputs. The error names the
    actions in a deadlock, the op that lacks an input, the event recorded too late, or the remaining ops or tensors.

    Parameters
    ----------
    spaces
        The devices' memory spaces, by default those of cores.
    empty
        Names of tensors that carry only an order, and have no memory.
    """
    checker = _Checker(graph, defaultdict(DeviceMemorySpace) if spaces is None else spaces, frozenset(empty))
    for program in programs:
        checker.run(program)
    missing = [op.id for op in graph.ops if op.id not in checker.done]
    if missing:
        raise InternalError(f"the program computes {len(checker.done)} of {len(graph.ops)} ops; missing: {missing[:3]}")
    return checker.found


@dataclass(frozen=True, slots=True)
class _Moment:
    """An action on a timeline (`line`), and its place in the program (`at`)."""

    line: _Line
    count: int
    program: Program
    at: tuple[str, int]

    def __str__(self) -> str:
        return self.program.where(*self.at)

    def precedes(self, after: _Clock) -> bool:
        return after.get(self.line, 0) >= self.count


@dataclass
class _Memory:
    """Memory of a tensor that one or several devices hold: its uses, and the clock of each device that frees it."""

    owner: _Line | None
    written: _Moment
    uses: list[_Moment] = field(default_factory=list)
    held: set[_Line] = field(default_factory=set)
    holders: int = 1
    returned_after: list[_Clock] = field(default_factory=list)


class _Checker:
    """Checks actions one after another; keeps, for every timeline, the moments of other timelines that precede it."""

    def __init__(self, graph: OpGraph, spaces: MemorySpaces, empty: frozenset[str]) -> None:
        self.found: list[str] = []
        self.done: set[str] = set()
        self._graph, self._spaces, self._empty = graph, spaces, empty
        self._after: dict[_Line, _Clock] = defaultdict(dict)
        self._memory: dict[tuple[str, str], _Memory] = {}  # (device, tensor) → memory, until it is freed
        self._latest: dict[_Line, _Moment] = {}
        self._count = 0

    def run(self, program: Program) -> None:
        """Check one program, which runs after the previous ones."""
        self._program = program
        self._events: dict[str, tuple[_Moment, _Clock]] = {}
        self._in_flight: dict[tuple[str, str], tuple[_Clock, _Memory]] = {}
        self._copies: dict[tuple[str, str, str], _Memory] = {}
        for device, position, action in interleaved(program):
            self._at = device, position
            self._moment((device, _THREAD))
            self._take(device, action)
        if self._in_flight:
            raise InternalError(f"tensors are sent but never received: {sorted(self._in_flight)[:3]}")
        for memory in self._copies.values():
            raise InternalError(f"{memory.written}: the tensor is copied but never sent")
        self._end()

    def _take(self, device: str, action: Action) -> None:
        if isinstance(action, Compute):
            self._compute(device, action.op)
        elif isinstance(action, Recv):
            self._receive(device, action)
        elif isinstance(action, RecordEvent):
            if action.event in self._events:
                raise self._error(f"event {action.event!r} has been recorded already")
            thread = self._latest[device, _THREAD]
            self._events[action.event] = thread, dict(self._after[self._moment((device, action.stream)).line])
        elif isinstance(action, (Wait, Sync)):
            self._wait(device, action)
        elif (device, action.tensor) not in self._memory:
            raise self._error("the device does not hold the tensor")
        elif isinstance(action, Hold):
            self._memory[device, action.tensor].held.add((device, action.stream))
        elif isinstance(action, Free):
            self._free(device, action.tensor)
        else:
            self._move(device, action)

    def _compute(self, device: str, op: str) -> None:
        if op not in self._graph.index or op in self.done:
            raise self._error(f"op {op!r} " + ("has run already" if op in self.done else "is not in the graph"))
        self.done.add(op)
        moment = self._moment(self._computing(device))
        for tensor in {edge.tensor: None for edge in self._graph.edges_into[op]}:
            if (device, tensor) not in self._memory:
                raise self._error(f"op {op!r} is computed without tensor {tensor!r}")
            self._read(device, tensor, moment)
        for tensor in {edge.tensor: None for edge in self._graph.edges_from[op]}:
            self._memory[device, tensor] = self._made(device, moment)

    def _made(self, device: str, moment: _Moment) -> _Memory:
        return _Memory(moment.line if self._spaces[device].has_streams else None, moment, [moment])

    def _wait(self, device: str, action: Wait | Sync) -> None:
        thread = self._after[device, _THREAD]
        # A stream does not wait for an event that is recorded later, so the recording thread must be ordered
        # before this one.
        if action.event not in self._events or not self._events[action.event][0].precedes(thread):
            raise self._error(
                f"event {action.event!r} is not recorded before, or nothing received here orders it before"
            )
        line = self._entered((device, action.stream)) if isinstance(action, Wait) else thread
        _merge(line, self._events[action.event][1])

    def _read(self, device: str, tensor: str, moment: _Moment) -> None:
        memory = self._memory[device, tensor]
        if not memory.written.precedes(self._after[moment.line]):
            self.found.append(f"{moment} uses tensor {tensor!r}, and does not wait for {memory.written}")
        memory.uses.append(moment)

    def _move(self, device: str, action: Send | Copy) -> None:
        key = action.tensor, device, action.target
        if action.target not in self._program.actions:
            raise self._error(f"the program has no device {action.target!r}")
        if isinstance(action, Copy):
            if key in self._copies:
                raise self._error("the tensor has been copied already")
            moment = self._moment((device, action.stream))
            self._read(device, action.tensor, moment)
            self._copies[key] = _Memory(None, moment, [moment])
        elif (action.tensor, action.target) in self._in_flight:
            raise self._error("the tensor has been sent already")
        else:
            memory = self._copies.pop(key) if key in self._copies else self._handed_over(device, action)
            clock = dict(self._after[device, _THREAD])
            # A transport reads tensors in the host's memory at once; on the device, it waits for enqueued work.
            if self._spaces[action.target].away and self._spaces[action.target].memory != HOST_MEMORY:
                _merge(clock, self._after[self._computing(device)])
            elif self._spaces[action.target].away and not memory.written.precedes(clock):
                self.found.append(f"{self._latest[device, _THREAD]}: the thread has not waited for {memory.written}")
            self._in_flight[action.tensor, action.target] = clock, memory

    def _handed_over(self, device: str, action: Send) -> _Memory:
        """The memory in which a tensor without a COPY arrives."""
        here, memory = self._spaces[device], self._memory[device, action.tensor]
        if here.hands_over_to(self._spaces[action.target]) or action.tensor in self._empty:
            memory.holders += 1
            return memory
        moment = self._moment((device, _THREAD))
        if not here.has_streams:
            self._read(device, action.tensor, moment)
            return _Memory(None, moment, [moment])
        self.found.append(f"{moment}: the tensor is in {here.memory}, and there is no COPY before")
        return memory

    def _receive(self, device: str, action: Recv) -> None:
        clock, memory = self._in_flight.pop((action.tensor, device))
        _merge(self._after[device, _THREAD], clock)
        if self._spaces[action.source].away:
            memory = self._made(device, self._moment(self._computing(device)))
        self._memory[device, action.tensor] = memory

    def _free(self, device: str, tensor: str) -> None:
        memory = self._memory.pop((device, tensor))
        memory.holders -= 1
        keepers = {line for line in (*memory.held, memory.owner) if line is not None and line[0] == device}
        for line in (*keepers, (device, _THREAD)):
            memory.returned_after.append(dict(self._entered(line)))
        if memory.holders or tensor in self._empty:
            return
        for use in memory.uses:
            if not any(use.precedes(after) for after in memory.returned_after):
                self.found.append(f"{self._latest[device, _THREAD]} gives back memory that {use} may still use")

    def _end(self) -> None:
        """Threads wait for their compute streams; then all work must have ended."""
        ended: _Clock = {}
        for device in self._program.actions:
            _merge(ended, self._after[device, _THREAD])
            _merge(ended, self._after[self._computing(device)])
        for moment in self._latest.values():
            if not moment.precedes(ended):
                self.found.append(f"{moment} may still be running when the program ends")
            _merge(ended, {moment.line: moment.count})
        for line in {*self._after, *((device, _THREAD) for device in self._program.actions)}:
            self._after[line] = dict(ended)

    def _computing(self, device: str) -> _Line:
        return device, COMPUTE_STREAM if self._spaces[device].has_streams else _THREAD

    def _entered(self, line: _Line) -> _Clock:
        after = self._after[line]
        _merge(after, self._after[line[0], _THREAD])
        return after

    def _moment(self, line: _Line) -> _Moment:
        self._count += 1
        self._entered(line)[line] = self._count
        self._latest[line] = _Moment(line, self._count, self._program, self._at)
        return self._latest[line]

    def _error(self, problem: str) -> InternalError:
        return InternalError(f"{self._program.where(*self._at)}: {problem}")


def _merge(after: _Clock, other: _Clock) -> None:
    for line, count in other.items():
        after[line] = max(after.get(line, 0), count)
