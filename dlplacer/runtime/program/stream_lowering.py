"""A lowering pass for devices with streams: what was implied by SEND and RECV becomes actions on streams and events.

A device with streams computes on one stream and copies on another for each device that it sends to, so that neither a
copy nor a late reader holds up what is computed. A tensor that another stream uses is ordered by an event, and its
memory protected by HOLD, which delays the reuse of memory and nothing else. What a device receives is always held:
views made of it there share its memory and outlive its FREE.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, COPY_STREAMS, streams_of
from dlplacer.runtime.program.program import (
    Action,
    Compute,
    Copy,
    Hold,
    Program,
    Record,
    Recv,
    Send,
    Sync,
    Wait,
    interleaved,
)

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
        streams, memory = streams_of(devices[name]), str(devices[name].torch_device)
        spaces[name] = DeviceMemorySpace(memory, streams is not None, streams is not None and streams.copies_here)
    return spaces


def with_streams(programs: Sequence[Program], spaces: MemorySpaces, empty: Collection[str] = ()) -> list[Program]:
    """The programs of a step with actions on streams; the programs themselves if no device has streams.

    Streams keep their order, so one event serves for all that is recorded with nothing in between, and waiting for a
    later event of a stream for all earlier ones. For `empty` tensors, which only carry an order, nothing is copied or
    held.
    """
    if not any(space.has_streams for space in spaces.values()):
        return list(programs)
    return [_Economy().program(_Lowering(spaces, frozenset(empty)).program(program)) for program in programs]


@dataclass
class _Lowering:
    """Lowers one action after another to actions that make the order of streams explicit, redundant or not."""

    spaces: MemorySpaces
    empty: frozenset[str]
    recorded: dict[str, int] = field(default_factory=dict)
    targets: dict[str, list[str]] = field(default_factory=dict)

    def program(self, program: Program) -> Program:
        """The program with every ordering made explicit."""
        return Program({device: tuple(self._lowered(device, actions)) for device, actions in program.actions.items()})

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
        arrived = _arrived(action.tensor, device, action.target)
        if action.tensor in self.empty or self.spaces[device].hands_over_to(target):
            yield Record(arrived, COMPUTE_STREAM)
        else:
            yield from self._copy(device, action, arrived)
        if target.away:
            yield Sync(arrived)
        yield action

    def _copy(self, device: str, action: Send, arrived: str) -> Iterator[Action]:
        stream = self._copy_stream(device, action.target)
        self.recorded[device] = self.recorded.get(device, 0) + 1
        computed = f"computed {device} {self.recorded[device]}"
        yield Record(computed, COMPUTE_STREAM)
        yield Wait(computed, stream)
        yield Copy(action.tensor, action.target, stream)
        yield Record(arrived, stream)
        if not self.spaces[action.target].away:
            yield Hold(action.tensor, stream)

    def _copy_stream(self, device: str, target: str) -> str:
        """The stream for copies to a device: of its own for the first few, which share it with the others."""
        targets = self.targets.setdefault(device, [])
        if target not in targets:
            targets.append(target)
        return f"copy:{targets[targets.index(target) % COPY_STREAMS]}"

    def _after_receive(self, device: str, action: Recv) -> Iterator[Action]:
        """A tensor from another process has arrived when it is received: its transport guarantees that."""
        here, source = self.spaces[device], self.spaces[action.source]
        if here.away or source.away:
            return
        arrived = _arrived(action.tensor, action.source, device)
        if source.has_streams:
            yield Wait(arrived, COMPUTE_STREAM) if here.has_streams else Sync(arrived)
        if here.has_streams and action.tensor not in self.empty:
            yield Hold(action.tensor, COMPUTE_STREAM)


def _arrived(tensor: str, source: str, target: str) -> str:
    return f"arrived {tensor!r} {source!r} {target!r}"


_Line = tuple[str, str]
"""A device, and one of its streams or ``""`` for its thread: what is on one line happens in order."""


@dataclass
class _Economy:
    """Leaves out records and waits that the order of a stream implies."""

    events: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[_Line, int]] = field(default_factory=dict)
    latest: dict[_Line, str] = field(default_factory=dict)
    known: dict[_Line, dict[_Line, int]] = field(default_factory=lambda: defaultdict(dict))
    pending: dict[_Line, dict[_Line, tuple[int, str, int]]] = field(default_factory=lambda: defaultdict(dict))
    dropped: set[tuple[str, int]] = field(default_factory=set)

    def program(self, program: Program) -> Program:
        """The program with fewer events, named by device and number: ``gpu0.1``, ``gpu0.2``, …"""
        for device, position, action in interleaved(program):
            if isinstance(action, Record):
                self._record(device, position, action)
            elif isinstance(action, (Wait, Sync)):
                self._wait(device, position, action)
            elif not isinstance(action, (Recv, Hold)):
                stream = action.stream if isinstance(action, Copy) else COMPUTE_STREAM
                self._settle((device, ""))
                self._settle((device, stream))
                if isinstance(action, (Compute, Copy)):
                    self.latest.pop((device, stream), None)
        kept = {
            device: [action for position, action in enumerate(actions) if (device, position) not in self.dropped]
            for device, actions in program.actions.items()
        }
        awaited = {self.events[one.event] for own in kept.values() for one in own if isinstance(one, (Wait, Sync))}
        names: dict[str, str] = {}
        for device, own in kept.items():
            recorded = (one.event for one in own if isinstance(one, Record) and one.event in awaited)
            names.update((event, f"{device}.{number}") for number, event in enumerate(recorded, start=1))
        return Program({device: tuple(self._named(own, names)) for device, own in kept.items()})

    def _record(self, device: str, position: int, action: Record) -> None:
        line = device, action.stream
        self._settle(line)
        if line in self.latest:
            self.dropped.add((device, position))
        else:
            self.latest[line] = action.event
            self.places[action.event] = line, position + 1
        self.events[action.event] = self.latest[line]

    def _wait(self, device: str, position: int, action: Wait | Sync) -> None:
        line = device, action.stream if isinstance(action, Wait) else ""
        source, count = self.places[self.events[action.event]]
        before = self.pending[line].get(source)
        if source == line or max(self.known[line].get(source, 0), before[0] if before else 0) >= count:
            self.dropped.add((device, position))
            return
        if before is not None:
            self.dropped.add(before[1:])
        self.pending[line][source] = count, device, position
        self.latest.pop(line, None)

    def _settle(self, line: _Line) -> None:
        """The line goes on, and has waited for all that it was told to wait for."""
        for source, (count, *_) in self.pending.pop(line, {}).items():
            self.known[line][source] = count

    def _named(self, actions: Iterable[Action], names: Mapping[str, str]) -> Iterator[Action]:
        for action in actions:
            if isinstance(action, Record) and action.event not in names:
                continue
            if isinstance(action, (Record, Wait, Sync)):
                action = replace(action, event=names[self.events[action.event]])
            yield action
