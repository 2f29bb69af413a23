"""Order of ops per device → program: insert sends, receives and frees; then actions on streams and events.

A device with streams computes on one stream and copies on another for each device that it sends to, so that neither a
copy nor a late reader holds up what is computed. A tensor that another stream uses is ordered by an event, and its
memory protected by HOLD, which delays the reuse of memory and nothing else. What a device receives is always held:
views made of it there share its memory and outlive its FREE."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.streams import COMPUTE_STREAM, COPY_STREAMS
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
    Sync,
    Wait,
)

Order = Mapping[str, Sequence[str]]
"""Device name → op ids in execution order."""


def lower(graph: OpGraph, order: Order, keep: Iterable[str] = ()) -> Program:
    """The program that runs all ops of a graph in the given order, which has every op once: see `lower_stages`."""
    return lower_stages(graph, [order], keep)[0]


def lower_stages(graph: OpGraph, stages: Sequence[Order], keep: Iterable[str] = ()) -> list[Program]:
    """One program for each stage of a step, run one after another on the same devices: forward, then backward.

    A tensor goes to a device once, right after its producer; it is received right before its first reader there, and
    freed on each device after its last use there, unless it is among those to `keep`. If a later stage alone reads it,
    it is received at the end of the stage that makes it, and stays on its device between the programs.
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
            # What is made and read by nobody here (sent only, or not at all) is freed right behind its producer.
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
    """One device of a program: the `memory` in which its tensors live, ``cpu`` or ``cuda:0``.

    If it `has_streams`, its thread enqueues work and goes on; else an action is done when its call returns. If it
    `copies`, tensors are copied even to a device of the same memory. One that is `away` belongs to another process:
    tensors for it are handed over in `memory`, the host's, or, if the transport orders streams itself, ``""``.
    """

    memory: str = HOST_MEMORY
    has_streams: bool = False
    copies: bool = False
    away: bool = False

    def hands_over_to(self, target: "DeviceMemorySpace") -> bool:
        """True if a tensor gets to another device without a copy."""
        if target.away and not target.memory:
            return True
        return self.memory == target.memory and not (self.copies and self.has_streams and target.has_streams)


MemorySpaces = Mapping[str, DeviceMemorySpace]
"""Device name in the program → its memory space."""


def memory_spaces(
    devices: Mapping[str, RuntimeDevice], names: Iterable[str], away_on_device: bool = False
) -> MemorySpaces:
    """The memory spaces of a program's devices; those that are not among `devices` belong to other processes.

    `away_on_device`: whether tensors for other processes are handed over where they are, and not in the host's memory.
    """
    elsewhere = DeviceMemorySpace("" if away_on_device else HOST_MEMORY, away=True)
    spaces = dict.fromkeys(names, elsewhere)
    for name in spaces.keys() & devices.keys():
        streams, memory = devices[name].streams, str(devices[name].torch_device)
        spaces[name] = DeviceMemorySpace(memory, streams is not None, streams is not None and streams.copies_here)
    return spaces


def with_streams(programs: Sequence[Program], spaces: MemorySpaces, empty: Collection[str] = ()) -> list[Program]:
    """The programs of a step with actions on streams; the programs themselves if no device has streams.

    For `empty` tensors, which only carry an order, nothing is copied or held.
    """
    if not any(space.has_streams for space in spaces.values()):
        return list(programs)
    return [_Lowering(program, spaces, frozenset(empty)).lowered() for program in programs]


@dataclass
class _Lowering:
    """Makes the order of streams explicit: a copy has one event before it and one behind it."""

    program: Program
    spaces: MemorySpaces
    empty: frozenset[str]
    targets: dict[str, list[str]] = field(default_factory=dict)
    number: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def lowered(self) -> Program:
        """The program with every ordering made explicit."""
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
        # A device has a stream of its own for each of the first few targets, which share it with the others.
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
        """A tensor from another process has arrived when it is received: its transport guarantees that."""
        here, source = self.spaces[device], self.spaces[action.source]
        if here.away or source.away:
            return
        arrived = f"{action.source}.{2 * self.number[action.tensor, action.source, device]}"
        if source.has_streams:
            yield Wait(arrived, COMPUTE_STREAM) if here.has_streams else Sync(arrived)
        if here.has_streams and action.tensor not in self.empty:
            yield Hold(action.tensor, COMPUTE_STREAM)
