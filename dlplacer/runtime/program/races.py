"""Whether the actions of a program order all that its streams do: the specification of lowered programs.

One happens-before relation over threads and streams: what a stream or a thread is given happens in order; what a thread
enqueues comes after all that the thread has done; a WAIT or SYNC comes after what was on its stream before the RECORD;
a RECV after the SEND; all of a program after all of the program before. The rules: an op and a copy read a tensor after
it is written; memory is given back after its last use on every stream; when a program ends, all streams have ended.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM
from dlplacer.runtime.program.actions import Action, Compute, Copy, Free, Hold, Record, Recv, Send, Sync, Wait
from dlplacer.runtime.program.program import Program, interleaved
from dlplacer.runtime.program.stream_lowering import HOST_MEMORY, MemorySpaces

_Line = tuple[str, str]
_THREAD = ""


def require_no_races(
    graph: OpGraph, programs: Sequence[Program], spaces: MemorySpaces, empty: Collection[str] = ()
) -> None:
    """Return if the programs, which run dry, have no races.

    Raises InternalError naming the first actions that nothing orders, with their devices and lines.
    """
    found = races(graph, programs, spaces, empty)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InternalError(f"the program has a race: {found[0]}{more}")


def races(graph: OpGraph, programs: Sequence[Program], spaces: MemorySpaces, empty: Collection[str] = ()) -> list[str]:
    """What nothing orders in programs that are run one after another, one line for each case.

    `empty`: names of tensors that only carry an order, and have no memory.
    """
    checker = _Checker(graph, spaces, frozenset(empty))
    for program in programs:
        checker.run(program)
    return checker.found


@dataclass(frozen=True, slots=True)
class _Moment:
    """Something that happens on a line."""

    line: _Line
    count: int
    where: str


_NEVER = _Moment(("", ""), 0, "")


@dataclass
class _Memory:
    """What one or several devices hold together: its uses, and what its return waits for."""

    owner: _Line | None
    written: _Moment
    uses: list[_Moment] = field(default_factory=list)
    held: set[_Line] = field(default_factory=set)
    holders: int = 1
    returned_after: list[dict[_Line, int]] = field(default_factory=list)


class _Checker:
    """Takes actions one after another, and keeps for every line which moments of the others it comes after."""

    def __init__(self, graph: OpGraph, spaces: MemorySpaces, empty: frozenset[str]) -> None:
        self.found: list[str] = []
        self._graph = graph
        self._spaces = spaces
        self._empty = empty
        self._after: dict[_Line, dict[_Line, int]] = defaultdict(dict)
        self._memory: dict[tuple[str, str], _Memory] = {}
        self._latest: dict[_Line, _Moment] = {}
        self._count = 0

    def run(self, program: Program) -> None:
        """Check one program behind those before it."""
        self._program = program
        self._events: dict[str, dict[_Line, int]] = {}
        self._in_flight: dict[tuple[str, str, str], dict[_Line, int]] = {}
        self._copies: dict[tuple[str, str, str], _Memory] = {}
        self._handovers: dict[tuple[str, str, str], _Memory] = {}
        for device, position, action in interleaved(program):
            self._take(device, position, action)
        self._end(program)

    def _take(self, device: str, position: int, action: Action) -> None:
        where = self._program.where(device, position)
        thread = self._after[device, _THREAD]
        if isinstance(action, Compute):
            self._compute(device, action.op, where)
        elif isinstance(action, Copy):
            self._copy(device, action, where)
        elif isinstance(action, Send):
            self._send(device, action, where)
        elif isinstance(action, Recv):
            self._receive(device, action, where)
        elif isinstance(action, Free):
            self._free(device, action.tensor, where)
        elif isinstance(action, Hold):
            self._memory[device, action.tensor].held.add((device, action.stream))
        elif isinstance(action, Record):
            moment = self._moment((device, action.stream), where)
            self._events[action.event] = dict(self._after[moment.line])
        elif isinstance(action, Wait):
            _merge(self._entered((device, action.stream)), self._events.get(action.event, {}))
        elif isinstance(action, Sync):
            _merge(thread, self._events.get(action.event, {}))

    def _compute(self, device: str, op: str, where: str) -> None:
        moment = self._moment(self._computing(device), where)
        for tensor in {edge.tensor: None for edge in self._graph.edges_into[op]}:
            self._read(device, tensor, moment)
        for tensor in {edge.tensor: None for edge in self._graph.edges_from[op]}:
            owner = moment.line if self._spaces[device].has_streams else None
            self._memory[device, tensor] = _Memory(owner, moment, [moment])

    def _copy(self, device: str, action: Copy, where: str) -> None:
        moment = self._moment((device, action.stream), where)
        self._read(device, action.tensor, moment)
        self._copies[action.tensor, device, action.target] = _Memory(None, moment, [moment])

    def _read(self, device: str, tensor: str, moment: _Moment) -> None:
        memory = self._memory[device, tensor]
        if not self._precedes(memory.written, self._after[moment.line]):
            self.found.append(f"{moment.where} uses tensor {tensor!r}, and does not wait for {memory.written.where}")
        memory.uses.append(moment)

    def _send(self, device: str, action: Send, where: str) -> None:
        here, target = self._spaces[device], self._spaces[action.target]
        key = action.tensor, device, action.target
        self._in_flight[key] = dict(self._after[device, _THREAD])
        memory = self._memory[device, action.tensor]
        if key in self._copies:
            memory = self._copies.pop(key)
        elif here.hands_over_to(target) or action.tensor in self._empty:
            memory.holders += 1
        elif here.has_streams:
            self.found.append(f"{where}: the tensor is in {here.memory}, and there is no COPY before")
        else:
            moment = self._moment((device, _THREAD), where)
            self._read(device, action.tensor, moment)
            self._in_flight[key] = dict(self._after[device, _THREAD])
            memory = _Memory(None, moment, [moment])
        if target.away:
            self._hand_to_transport(device, key, memory, where)
        self._handovers[key] = memory

    def _hand_to_transport(self, device: str, key: tuple[str, str, str], memory: _Memory, where: str) -> None:
        """A transport takes what is in the host's memory at once, and orders itself behind what is on the device."""
        if self._spaces[key[2]].memory == HOST_MEMORY:
            if not self._precedes(memory.written, self._after[device, _THREAD]):
                self.found.append(f"{where}: the thread has not waited for {memory.written.where}")
        else:
            _merge(self._in_flight[key], self._after[self._computing(device)])

    def _receive(self, device: str, action: Recv, where: str) -> None:
        key = action.tensor, action.source, device
        _merge(self._after[device, _THREAD], self._in_flight.pop(key))
        self._memory[device, action.tensor] = self._handovers.pop(key)
        if self._spaces[action.source].away:
            moment = self._moment(self._computing(device), where)
            self._memory[device, action.tensor] = _Memory(moment.line, moment, [moment])

    def _free(self, device: str, tensor: str, where: str) -> None:
        memory = self._memory.pop((device, tensor))
        memory.holders -= 1
        keepers = {line for line in (*memory.held, memory.owner) if line is not None and line[0] == device}
        for line in (*keepers, (device, _THREAD)):
            memory.returned_after.append(dict(self._entered(line)))
        if memory.holders or tensor in self._empty:
            return
        for use in memory.uses:
            if not any(self._precedes(use, after) for after in memory.returned_after):
                self.found.append(f"{where} gives back memory that {use.where} may still use")

    def _end(self, program: Program) -> None:
        """Threads wait for what is computed; then everything must have ended."""
        ended: dict[_Line, int] = {}
        for device in program.actions:
            _merge(ended, self._after[device, _THREAD])
            _merge(ended, self._after[self._computing(device)])
        for moment in self._latest.values():
            if not self._precedes(moment, ended):
                self.found.append(f"{moment.where} may still be under way when the program ends")
            _merge(ended, {moment.line: moment.count})
        for line in {*self._after, *((device, _THREAD) for device in program.actions)}:
            self._after[line] = dict(ended)

    def _computing(self, device: str) -> _Line:
        return device, COMPUTE_STREAM if self._spaces[device].has_streams else _THREAD

    def _entered(self, line: _Line) -> dict[_Line, int]:
        after = self._after[line]
        _merge(after, self._after[line[0], _THREAD])
        return after

    def _moment(self, line: _Line, where: str) -> _Moment:
        self._count += 1
        self._entered(line)[line] = self._count
        self._latest[line] = _Moment(line, self._count, where)
        return self._latest[line]

    def _precedes(self, moment: _Moment, after: dict[_Line, int]) -> bool:
        return after.get(moment.line, 0) >= moment.count


def _merge(after: dict[_Line, int], other: dict[_Line, int]) -> None:
    for line, count in other.items():
        after[line] = max(after.get(line, 0), count)
