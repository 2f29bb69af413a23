"""What crosses processes in a program, and in which order every channel carries it."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InternalError
from dlplacer.runtime.program.actions import Recv, Send
from dlplacer.runtime.program.program import Program

Channel = tuple[str, str]
"""What carries messages one after another; the names of its two ends."""


@dataclass(frozen=True, slots=True)
class Message:
    """A tensor on its way from a device of one process to a device of another."""

    tensor: str
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.tensor} {self.source} -> {self.target}"


def messages_of(program: Program, rank_of: Callable[[str], int]) -> tuple[Message, ...]:
    """The messages of a program in an order in which it can send them: one action of every device at a time.

    The order is that of one possible run, so a channel that carries its messages in this order never waits for one that
    waits for another behind it.

    Raises
    ------
    InternalError
        If the program hangs.
    """
    position = dict.fromkeys(program.actions, 0)
    sent: set[Message] = set()
    found: list[Message] = []
    moved = True
    while moved:
        moved = False
        for device, actions in program.actions.items():
            if position[device] == len(actions):
                continue
            action = actions[position[device]]
            if isinstance(action, Recv) and Message(action.tensor, action.source, device) not in sent:
                continue
            if isinstance(action, Send):
                message = Message(action.tensor, device, action.target)
                sent.add(message)
                if rank_of(device) != rank_of(action.target):
                    found.append(message)
            position[device] += 1
            moved = True
    stuck = [name for name, actions in program.actions.items() if position[name] < len(actions)]
    if stuck:
        raise InternalError(
            f"the program would hang: {stuck[0]} waits at {program.actions[stuck[0]][position[stuck[0]]]}"
        )
    return tuple(found)


def by_channel(
    messages: tuple[Message, ...], rank_of: Callable[[str], int], ordered_pairs: bool
) -> Mapping[Channel, tuple[Message, ...]]:
    """Channel → its messages in order.

    Parameters
    ----------
    ordered_pairs
        Whether there is a channel for every two devices and direction, as tags allow (gloo); else there is one for
        every two processes, and it carries both directions in one order (NCCL).
    """
    found: dict[Channel, list[Message]] = defaultdict(list)
    for message in messages:
        low, high = sorted((rank_of(message.source), rank_of(message.target)))
        channel = (message.source, message.target) if ordered_pairs else (f"rank{low}", f"rank{high}")
        found[channel].append(message)
    return {channel: tuple(entries) for channel, entries in found.items()}
