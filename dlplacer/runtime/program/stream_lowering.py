"""A lowering pass for devices with streams: what was implied by SEND and RECV becomes actions on streams and events.

A device with streams computes on one stream and copies on another for each device that it sends to, so that neither a
copy nor a late reader holds up what is computed. A tensor that another stream uses is ordered by an event, and its
memory protected by HOLD. A HOLD delays the reuse of memory; a WAIT of the compute stream before each FREE would protect
it as well, but delay all that the device computes behind its slowest copy. Where the compute stream has waited for the
copy anyway, because something came back, the HOLD is dropped. What a device receives is always held: views made of it
there share its memory and outlive its FREE, and the program does not know which tensors are views.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM
from dlplacer.runtime.program.actions import Action, Copy, Hold, Record, Recv, Send, Sync, Wait
from dlplacer.runtime.program.device_memory import MemorySpaces
from dlplacer.runtime.program.drop_redundant_waits import without_redundancy
from dlplacer.runtime.program.program import Program


def with_streams(programs: Sequence[Program], spaces: MemorySpaces, empty: Collection[str] = ()) -> list[Program]:
    """The programs of a step with actions on streams; the programs themselves if no device has streams.

    The waits and holds that order nothing further are left out.

    Parameters
    ----------
    empty
        Names of tensors that only carry an order: nothing is copied or held for them.
    """
    if not any(space.has_streams for space in spaces.values()):
        return list(programs)
    return [without_redundancy(_Lowering(spaces, frozenset(empty)).program(program), spaces) for program in programs]


@dataclass
class _Lowering:
    """Lowers one action after another to actions that make the order of streams explicit, redundant or not."""

    spaces: MemorySpaces
    empty: frozenset[str]
    recorded: dict[str, int] = field(default_factory=dict)

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
        stream = f"copy:{action.target}"
        self.recorded[device] = self.recorded.get(device, 0) + 1
        computed = f"computed {device} {self.recorded[device]}"
        yield Record(computed, COMPUTE_STREAM)
        yield Wait(computed, stream)
        yield Copy(action.tensor, action.target, stream)
        yield Record(arrived, stream)
        yield Hold(action.tensor, stream)

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
