"""Programs: each device's actions in order, printed one per line; the lowering of a plan's order; the order of issue.

All programs have COMPUTE, SEND, RECV and FREE. For devices with streams, a lowering pass adds the other actions: they
order the work of streams, and delay the reuse of memory that streams still use."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.cuda import COMPUTE_STREAM, COPY_STREAMS


class _Line:
    """Prints an action as its `form`, with field names replaced by their values."""

    __slots__ = ()
    form: ClassVar[str]

    def __str__(self) -> str:
        values = {name: quoted(getattr(self, name)) for name in re.findall(r"{(\w+)}", self.form)}
        return self.form.format_map(values)


@dataclass(frozen=True, slots=True)
class Compute(_Line):
    """``COMPUTE op``: run an op whose inputs are all on the device."""

    form: ClassVar[str] = "COMPUTE {op}"
    op: str


@dataclass(frozen=True, slots=True)
class Send(_Line):
    """``SEND tensor -> device``: start to send a tensor, without waiting for its arrival."""

    form: ClassVar[str] = "SEND {tensor} -> {target}"
    tensor: str
    target: str


@dataclass(frozen=True, slots=True)
class Recv(_Line):
    """``RECV tensor <- device``: wait until a tensor has arrived."""

    form: ClassVar[str] = "RECV {tensor} <- {source}"
    tensor: str
    source: str


@dataclass(frozen=True, slots=True)
class Free(_Line):
    """``FREE tensor``: drop the reference to a tensor that this device no longer needs."""

    form: ClassVar[str] = "FREE {tensor}"
    tensor: str


@dataclass(frozen=True, slots=True)
class Copy(_Line):
    """``COPY tensor -> device ON stream``: enqueue a copy, which the next SEND of the tensor sends."""

    form: ClassVar[str] = "COPY {tensor} -> {target} ON {stream}"
    tensor: str
    target: str
    stream: str


@dataclass(frozen=True, slots=True)
class RecordEvent(_Line):
    """``RECORD event ON stream``: the event happens once the stream has finished the work queued so far."""

    form: ClassVar[str] = "RECORD {event} ON {stream}"
    event: str
    stream: str


@dataclass(frozen=True, slots=True)
class Wait(_Line):
    """``WAIT event ON stream``: the stream waits until the event has happened; the thread does not wait."""

    form: ClassVar[str] = "WAIT {event} ON {stream}"
    event: str
    stream: str


@dataclass(frozen=True, slots=True)
class Sync(_Line):
    """``SYNC event``: the thread waits until the event has happened."""

    form: ClassVar[str] = "SYNC {event}"
    event: str


@dataclass(frozen=True, slots=True)
class Hold(_Line):
    """``HOLD tensor FOR stream``: the memory is reused only after the work queued on the stream by the time of FREE."""

    form: ClassVar[str] = "HOLD {tensor} FOR {stream}"
    tensor: str
    stream: str


StreamAction = Copy | RecordEvent | Wait | Sync | Hold
Action = Compute | Send | Recv | Free | StreamAction
Actions = tuple[Action, ...]


def quoted(name: str) -> str:
    """The name itself, or a JSON string if it has spaces or quotes, or is empty."""
    return name if re.fullmatch(r'[^\s"]+', name) else json.dumps(name)


@dataclass(frozen=True)
class Program:
    """Device name → its actions in order; tensors cross devices through matching SEND and RECV."""

    actions: Mapping[str, Actions]

    def __str__(self) -> str:
        lines = []
        for device, entries in self.actions.items():
            lines += [f"DEVICE {quoted(device)}", *(f"  {action}" for action in entries)]
        return "\n".join(lines) + "\n"

    def line(self, device: str, position: int) -> int:
        """Number of the line on which an action of a device is printed; the first line is 1."""
        before = list(self.actions)[: list(self.actions).index(device)]
        return sum(1 + len(self.actions[name]) for name in before) + position + 2

    def where(self, device: str, position: int) -> str:
        """An action's place in messages: ``gpu0, line 7: SEND x -> gpu1``."""
        return f"{device}, line {self.line(device, position)}: {self.actions[device][position]}"


def interleaved(program: Program) -> Iterator[tuple[str, int, Action]]:
    """(device, position, action) for all actions, in an order in which every RECV follows its SEND.

    InternalError if the program would hang.
    """
    position = dict.fromkeys(program.actions, 0)
    single = {name: [(action,) for action in actions] for name, actions in program.actions.items()}
    for device, (action,) in _issued(program, single, {name: [0.0] * len(own) for name, own in single.items()}):
        yield device, position[device], action
        position[device] += 1


def issue_order(
    program: Program, kind_of: Callable[[str], object], longest: int, starts: Mapping[str, float]
) -> Iterator[tuple[str, Actions]]:
    """(device, actions issued together) for all devices, by planned start, with every RECV after its SEND.

    COMPUTE and FREE are issued in runs; other actions are issued alone. Ops of equal kind share runs of up to `longest`
    actions; an op of kind None is alone. `starts`: op → planned start, in any unit; a run without a planned start takes
    the start of the next run that has one.
    """
    parts = {name: list(_parts(actions, kind_of, longest)) for name, actions in program.actions.items()}
    return _issued(program, parts, {name: _ranks(own, starts) for name, own in parts.items()})


def _issued(
    program: Program, parts: Mapping[str, Sequence[Actions]], ranks: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, Actions]]:
    """The parts of all devices in the order of issue: the ready part of lowest rank; InternalError if none is ready."""
    turn = dict.fromkeys(parts, 0)
    sent: set[tuple[str, str, str]] = set()

    def is_ready(name: str) -> bool:
        if turn[name] == len(parts[name]):
            return False
        action = parts[name][turn[name]][0]
        return not isinstance(action, Recv) or (action.tensor, action.source, name) in sent

    while ready := [name for name in parts if is_ready(name)]:
        name = min(ready, key=lambda name: ranks[name][turn[name]])
        part = parts[name][turn[name]]
        turn[name] += 1
        action = part[0]
        if isinstance(action, Send):
            sent.add((action.tensor, name, action.target))
        elif isinstance(action, Recv):
            sent.remove((action.tensor, action.source, name))
        yield name, part
    stuck = [
        f"{name} waits at {own[turn[name]][0]} (line {program.line(name, sum(map(len, own[: turn[name]])))})"
        for name, own in parts.items()
        if turn[name] < len(own)
    ]
    if stuck:
        raise InternalError(f"the program would hang: {'; '.join(stuck)}")


def _parts(actions: Sequence[Action], kind_of: Callable[[str], object], longest: int) -> Iterator[Actions]:
    """The actions of a device, cut into parts that are issued together."""
    run: list[Action] = []
    kinds: list[object] = []
    for action in actions:
        own = kind_of(action.op) if isinstance(action, Compute) else None
        joins = isinstance(action, Free) or (isinstance(action, Compute) and not kinds)
        if run and not joins and not (len(run) < longest and own is not None and own in kinds):
            yield tuple(run)
            run, kinds = [], []
        run.append(action)
        if isinstance(action, Compute):
            kinds = [own]
        elif not isinstance(action, Free):
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)


def _ranks(parts: Sequence[Actions], starts: Mapping[str, float]) -> list[float]:
    """For each part, the earliest planned start in it, or in the next part that has any."""
    ranks: list[float] = []
    rank = math.inf
    for part in reversed(parts):
        ops = (action.op for action in part if isinstance(action, Compute))
        rank = min((starts[op] for op in ops if op in starts), default=rank)
        ranks.append(rank)
    return ranks[::-1]


Order = Mapping[str, Sequence[str]]
"""Device name → op ids in execution order."""


def lower(graph: OpGraph, order: Order, keep: Iterable[str] = ()) -> Program:
    """The program that runs all ops of a graph once, in the given order; see `lower_stages`."""
    return lower_stages(graph, [order], keep)[0]


def lower_stages(graph: OpGraph, stages: Sequence[Order], keep: Iterable[str] = ()) -> list[Program]:
    """One program per stage of a step: forward, then backward. They run one after another on the same devices.

    A tensor is sent to a device once, right after its producer, and received right before its first reader there. Each
    device frees a tensor after its last use, except tensors to `keep`. A tensor that a device reads only in a later
    stage is received at the end of its producer's stage, and stays on the device between programs.
    """
    state = _State(graph, stages, frozenset(keep))
    return [Program({device: tuple(state.actions(device, order)) for device in order}) for order in stages]


@dataclass
class _State:
    graph: OpGraph
    stages: Sequence[Order]
    keep: frozenset[str]
    home: dict[str, str] = field(default_factory=dict)
    here: set[tuple[str, str]] = field(default_factory=set)
    uses_left: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        for order in self.stages:
            for device, ops in order.items():
                self.home.update(dict.fromkeys(ops, device))
        for op in self.graph.ops:
            for tensor in _tensors(self.graph.edges_into[op.id]):
                self.uses_left[tensor, self.home[op.id]] += 1

    def actions(self, device: str, order: Order) -> Iterable[Action]:
        """The actions of one device in one stage."""
        for op in order[device]:
            read = _tensors(self.graph.edges_into[op])
            for tensor, edge in read.items():
                yield from self._receive(tensor, edge.source, device)
            yield Compute(op)
            made = _tensors(self.graph.edges_from[op])
            for tensor in made:
                yield from (Send(tensor, target) for target in self._targets(op, tensor, device))
            for tensor in read:
                self.uses_left[tensor, device] -= 1
            # A tensor that no op reads here (sent, or unused) is freed right after its producer.
            for tensor in (*read, *made):
                if not self.uses_left[tensor, device] and tensor not in self.keep:
                    yield Free(tensor)
        for op in (op for source, ops in order.items() if source != device for op in ops):
            for tensor in _tensors(self.graph.edges_from[op]):
                if device in self._targets(op, tensor, self.home[op]):
                    yield from self._receive(tensor, op, device)

    def _receive(self, tensor: str, producer: str, device: str) -> Iterable[Action]:
        if self.home[producer] != device and (tensor, device) not in self.here:
            self.here.add((tensor, device))
            yield Recv(tensor, self.home[producer])

    def _targets(self, op: str, tensor: str, device: str) -> list[str]:
        readers = (self.home[edge.target] for edge in self.graph.edges_from[op] if edge.tensor == tensor)
        return [target for target in dict.fromkeys(readers) if target != device]


def _tensors(edges: Iterable[Edge]) -> dict[str, Edge]:
    return {edge.tensor: edge for edge in edges}


HOST_MEMORY = str(HOST_DEVICE)


@dataclass(frozen=True, slots=True)
class DeviceMemorySpace:
    """The memory of one device of a program: its tensors live in `memory`, such as ``cpu`` or ``cuda:0``.

    With `has_streams`, the device's thread only enqueues work; else an action is done when its call returns. With
    `copies`, tensors are copied even to a device with the same memory. A device that is `away` belongs to another
    process. Its `memory` is then the host's, or ``""`` if the transport reads GPU memory and orders streams itself.
    """

    memory: str = HOST_MEMORY
    has_streams: bool = False
    copies: bool = False
    away: bool = False

    def hands_over_to(self, target: "DeviceMemorySpace") -> bool:
        """True if a tensor reaches another device without a COPY."""
        if target.away and not target.memory:
            return True
        return self.memory == target.memory and not (self.copies and self.has_streams and target.has_streams)


MemorySpaces = Mapping[str, DeviceMemorySpace]
"""Device name in the program → its memory space."""


def memory_spaces(
    devices: Mapping[str, RuntimeDevice], names: Iterable[str], away_on_device: bool = False
) -> MemorySpaces:
    """The memory spaces of a program's devices; names that `devices` lacks belong to other processes.

    `away_on_device`: whether tensors are sent to other processes from the device's memory, not the host's.
    """
    elsewhere = DeviceMemorySpace("" if away_on_device else HOST_MEMORY, away=True)
    spaces = dict.fromkeys(names, elsewhere)
    for name in spaces.keys() & devices.keys():
        streams, memory = devices[name].streams, str(devices[name].torch_device)
        spaces[name] = DeviceMemorySpace(memory, streams is not None, streams is not None and streams.copies_here)
    return spaces


def with_streams(programs: Sequence[Program], spaces: MemorySpaces, empty: Collection[str] = ()) -> list[Program]:
    """The programs of a step with stream actions added; unchanged if no device has streams.

    Tensors in `empty` carry only an order: they are never copied or held.
    """
    if not any(space.has_streams for space in spaces.values()):
        return list(programs)
    return [_Lowering(program, spaces, frozenset(empty)).lowered() for program in programs]


@dataclass
class _Lowering:
    """Makes the order of streams explicit: a copy has one event before it and one after it."""

    program: Program
    spaces: MemorySpaces
    empty: frozenset[str]
    targets: dict[str, list[str]] = field(default_factory=dict)
    number: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def lowered(self) -> Program:
        """The program with all stream actions added."""
        given = self.program.actions
        for device, actions in given.items():
            sends = [action for action in actions if isinstance(action, Send)]
            self.number |= {(send.tensor, device, send.target): number for number, send in enumerate(sends, start=1)}
        return Program({device: tuple(self._lowered(device, actions)) for device, actions in given.items()})

    def _lowered(self, device: str, actions: Iterable[Action]) -> Iterator[Action]:
        for action in actions:
            if isinstance(action, Send) and self.spaces[device].has_streams:
                yield from self._send(device, action)
                continue
            yield action
            if isinstance(action, Recv):
                yield from self._after_receive(device, action)

    def _send(self, device: str, action: Send) -> Iterator[Action]:
        target = self.spaces[action.target]
        if target.away and not target.memory:
            yield action
            return
        number = self.number[action.tensor, device, action.target]
        arrived = f"{device}.{2 * number}"
        if action.tensor in self.empty or self.spaces[device].hands_over_to(target):
            yield RecordEvent(arrived, COMPUTE_STREAM)
        else:
            yield from self._copy(device, action, f"{device}.{2 * number - 1}", arrived)
        if target.away:
            yield Sync(arrived)
        yield action

    def _copy(self, device: str, action: Send, computed: str, arrived: str) -> Iterator[Action]:
        # A device has a copy stream for each of its first few targets; later targets share these streams.
        targets = self.targets.setdefault(device, [])
        if action.target not in targets:
            targets.append(action.target)
        stream = f"copy:{targets[targets.index(action.target) % COPY_STREAMS]}"
        yield RecordEvent(computed, COMPUTE_STREAM)
        yield Wait(computed, stream)
        yield Copy(action.tensor, action.target, stream)
        yield RecordEvent(arrived, stream)
        if not self.spaces[action.target].away:
            yield Hold(action.tensor, stream)

    def _after_receive(self, device: str, action: Recv) -> Iterator[Action]:
        """Wait for the arrival of a tensor; between processes, the transport has already done so."""
        here, source = self.spaces[device], self.spaces[action.source]
        if here.away or source.away:
            return
        arrived = f"{action.source}.{2 * self.number[action.tensor, action.source, device]}"
        if source.has_streams:
            yield Wait(arrived, COMPUTE_STREAM) if here.has_streams else Sync(arrived)
        if here.has_streams and action.tensor not in self.empty:
            yield Hold(action.tensor, COMPUTE_STREAM)
