"""What crosses processes in a program, and in which order every channel carries it."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlplacer.runtime.program.actions import Send
from dlplacer.runtime.program.program import Program, interleaved

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
    return tuple(
        Message(action.tensor, device, action.target)
        for device, _, action in interleaved(program, in_step=True)
        if isinstance(action, Send) and rank_of(device) != rank_of(action.target)
    )


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
