"""Leave out waits, records and holds that order nothing further: what remains orders exactly as much."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM
from dlplacer.runtime.program.actions import Action, Compute, Copy, Free, Hold, Record, Recv, Send, Sync, Wait
from dlplacer.runtime.program.device_memory import MemorySpaces
from dlplacer.runtime.program.program import Program, interleaved

Place = tuple[str, int]
"""A device and a position among its actions."""

Line = tuple[str, str]
"""A device, and one of its streams or ``""`` for its thread: what is on one line happens in order."""

Clock = dict[Line, int]
"""Line → how many of its device's actions are known to be done, as far as they are on this line."""

THREAD = ""


@dataclass
class StreamClocks:
    """The clocks of all lines while the actions of a program are taken, one after another.

    What a thread knows, all that it enqueues from then on comes after.
    """

    spaces: MemorySpaces
    of: dict[Line, Clock] = field(default_factory=lambda: defaultdict(dict))
    _sent: dict[tuple[str, str, str], Clock] = field(default_factory=dict)
    _events: dict[str, tuple[Line, int, Clock]] = field(default_factory=dict)

    def take(self, device: str, position: int, action: Action) -> None:
        """Go on by one action."""
        thread = self.of[device, THREAD]
        if isinstance(action, Send):
            self._sent[action.tensor, device, action.target] = dict(thread)
        elif isinstance(action, Recv):
            join(thread, self._sent[action.tensor, action.source, device])
        elif isinstance(action, Sync):
            self.wait((device, THREAD), action.event)
        elif isinstance(action, Wait):
            self.wait((device, action.stream), action.event)
        elif isinstance(action, (Copy, Record)):
            self._advance((device, action.stream), position)
            if isinstance(action, Record):
                line = device, action.stream
                self._events[action.event] = line, position + 1, dict(self.of[line])
        elif isinstance(action, Compute):
            self._advance((device, COMPUTE_STREAM if self.spaces[device].has_streams else THREAD), position)

    def entered(self, line: Line) -> Clock:
        """The clock of a line, to which its thread is about to add something."""
        clock = self.of[line]
        if line[1] != THREAD:
            join(clock, self.of[line[0], THREAD])
        return clock

    def wait(self, line: Line, event: str) -> None:
        """Let a line wait for an event."""
        join(self.entered(line), self._events[event][2])

    def knows(self, line: Line, event: str) -> bool:
        """Whether an event has happened for all that the line is given from now on."""
        source, position, _ = self._events[event]
        return self.entered(line).get(source, 0) >= position

    def implies(self, event: str, other: str) -> bool:
        """Whether another event has happened whenever this one has."""
        source, position, _ = self._events[other]
        return self._events[event][2].get(source, 0) >= position

    def line_of(self, event: str) -> Line:
        """The line on which an event was recorded."""
        return self._events[event][0]

    def _advance(self, line: Line, position: int) -> None:
        self.entered(line)[line] = position + 1


def join(clock: Clock, other: Clock) -> None:
    """Let a clock know what another one knows."""
    for line, position in other.items():
        if clock.get(line, 0) < position:
            clock[line] = position


def without_redundancy(program: Program, spaces: MemorySpaces) -> Program:
    """The program without them, its events numbered by the device that records them."""
    before = None
    # To a fixed point: without a wait two records may be adjacent on their stream, and sharing one event makes further
    # waits redundant.
    while program != before:
        before = program
        program = _with_shared_records(program)
        program = _without(program, _redundant_waits(program, spaces))
    program = _without(program, _redundant_holds(program, spaces))
    return _numbered(_without(program, _unused_records(program)))


def _with_shared_records(program: Program) -> Program:
    """One event in place of several that are recorded on a stream with nothing in between."""
    shared: dict[str, str] = {}
    for actions in program.actions.values():
        latest: dict[str, str] = {}
        for action in actions:
            stream = _enqueued_on(action)
            if isinstance(action, Record):
                shared[action.event] = latest.setdefault(action.stream, action.event)
            elif stream is not None:
                latest.pop(stream, None)
    return _renamed(program, shared)


def _redundant_waits(program: Program, spaces: MemorySpaces) -> set[Place]:
    """Waits for events that the line knows of by the time at which it has something else to do."""
    clocks = StreamClocks(spaces)
    redundant: set[Place] = set()
    pending: dict[Line, dict[Place, str]] = defaultdict(dict)
    for device, position, action in interleaved(program):
        if isinstance(action, (Wait, Sync)):
            line = device, action.stream if isinstance(action, Wait) else THREAD
            pending[line][device, position] = action.event
            continue
        if not isinstance(action, (Recv, Hold)):
            for stream in (THREAD, _enqueued_on(action) or THREAD):
                line = device, stream
                redundant.update(_settled(line, pending.pop(line, {}), clocks))
        clocks.take(device, position, action)
    for line in sorted(pending):
        waits = pending[line]
        redundant.update(_settled(line, waits, clocks))
        # A device waits for its compute stream at the end of a program.
        redundant.update(place for place, event in waits.items() if clocks.line_of(event)[1] == COMPUTE_STREAM)
    return redundant


def _settled(line: Line, waits: dict[Place, str], clocks: StreamClocks) -> list[Place]:
    """Let a line wait for all events; those of the waits that another one, or what the thread knows, implies."""
    needed = {
        place: event
        for place, event in waits.items()
        if not any(other != event and clocks.implies(other, event) for other in waits.values())
    }
    for place, event in list(needed.items()):
        if clocks.knows(line, event):
            del needed[place]
        else:
            clocks.wait(line, event)
    return [place for place in waits if place not in needed]


def _redundant_holds(program: Program, spaces: MemorySpaces) -> set[Place]:
    """Holds for copies that are done for all that is computed after the tensor's FREE, or are done by the end."""
    clocks = StreamClocks(spaces)
    latest_copy = 0
    held: dict[tuple[str, str], list[tuple[Place, str, int]]] = defaultdict(list)
    redundant: set[Place] = set()
    for device, position, action in interleaved(program):
        if isinstance(action, Copy):
            latest_copy = position
        elif isinstance(action, Hold) and action.stream != COMPUTE_STREAM:
            held[device, action.tensor].append(((device, position), action.stream, latest_copy))
        elif isinstance(action, Free):
            computed = clocks.entered((device, COMPUTE_STREAM))
            for place, stream, copy in held.pop((device, action.tensor), []):
                if computed.get((device, stream), 0) > copy:
                    redundant.add(place)
        clocks.take(device, position, action)
    return redundant.union(place for holds in held.values() for place, _, _ in holds)


def _unused_records(program: Program) -> set[Place]:
    every = [action for actions in program.actions.values() for action in actions]
    awaited = {action.event for action in every if isinstance(action, (Wait, Sync))}
    return {
        (device, position)
        for device, actions in program.actions.items()
        for position, action in enumerate(actions)
        if isinstance(action, Record) and action.event not in awaited
    }


def _numbered(program: Program) -> Program:
    """Events named after the device that records them and counted there: ``gpu0.1``, ``gpu0.2``, …"""
    names: dict[str, str] = {}
    for device, actions in program.actions.items():
        events = (action.event for action in actions if isinstance(action, Record))
        names.update((event, f"{device}.{number}") for number, event in enumerate(events, start=1))
    return _renamed(program, names)


def _renamed(program: Program, names: dict[str, str]) -> Program:
    """The program with other names of events; of several records of one event the first remains."""
    renamed: dict[str, tuple[Action, ...]] = {}
    for device, actions in program.actions.items():
        kept: list[Action] = []
        recorded: set[Action] = set()
        for action in actions:
            if isinstance(action, (Record, Wait, Sync)):
                action = replace(action, event=names[action.event])
            if action not in recorded:
                kept.append(action)
            if isinstance(action, Record):
                recorded.add(action)
        renamed[device] = tuple(kept)
    return Program(renamed)


def _without(program: Program, places: set[Place]) -> Program:
    return Program(
        {
            device: tuple(action for position, action in enumerate(actions) if (device, position) not in places)
            for device, actions in program.actions.items()
        }
    )


def _enqueued_on(action: Action) -> str | None:
    """The stream that has something to do because of the action."""
    if isinstance(action, Compute):
        return COMPUTE_STREAM
    return action.stream if isinstance(action, (Copy, Record, Wait)) else None
