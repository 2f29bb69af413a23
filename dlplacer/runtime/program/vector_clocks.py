"""What every stream and thread knows to be done: vector clocks over the actions of a program."""

from collections import defaultdict
from dataclasses import dataclass, field

from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM
from dlplacer.runtime.program.actions import Action, Compute, Copy, Record, Recv, Send, Sync, Wait
from dlplacer.runtime.program.device_memory import MemorySpaces

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
