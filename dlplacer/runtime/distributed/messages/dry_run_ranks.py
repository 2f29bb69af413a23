"""Run the joined programs of all processes without computing anything: refuse what would hang."""

from collections.abc import Mapping, Sequence

from dlplacer.core.errors import InternalError
from dlplacer.runtime.distributed.messages.messages import Channel, Message
from dlplacer.runtime.program.actions import Recv, Send
from dlplacer.runtime.program.program import Program


def dry_run_ranks(program: Program, channels: Mapping[Channel, Sequence[Message]]) -> None:
    """Return if every device gets to its last action although channels carry one message at a time, in their order.

    Messages that are in no channel stay inside a process and are there at once.

    Raises
    ------
    InternalError
        Naming what every device and channel waits for.
    """
    carried = {message: channel for channel, entries in channels.items() for message in entries}
    position = dict.fromkeys(program.actions, 0)
    head = dict.fromkeys(channels, 0)
    given: set[Message] = set()
    arrived: set[Message] = set()
    moved = True
    while moved:
        moved = False
        for device, actions in program.actions.items():
            while position[device] < len(actions):
                action = actions[position[device]]
                if isinstance(action, Recv) and Message(action.tensor, action.source, device) not in arrived:
                    break
                if isinstance(action, Send):
                    message = Message(action.tensor, device, action.target)
                    (given if message in carried else arrived).add(message)
                position[device] += 1
                moved = True
        for channel, entries in channels.items():
            while head[channel] < len(entries) and entries[head[channel]] in given:
                arrived.add(entries[head[channel]])
                head[channel] += 1
                moved = True
    waits = [
        f"{device} waits at {actions[position[device]]}"
        for device, actions in program.actions.items()
        if position[device] < len(actions)
    ]
    waits += [
        f"channel {' – '.join(channel)} waits for {entries[head[channel]]}"
        for channel, entries in channels.items()
        if head[channel] < len(entries)
    ]
    if waits:
        raise InternalError(f"the program would hang across processes: {'; '.join(waits)}")
