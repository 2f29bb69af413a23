"""One order in which the threads of all devices can take the actions of a program."""

from collections.abc import Iterator

from dlplacer.core.errors import InternalError
from dlplacer.runtime.program.actions import Action, Recv, Send
from dlplacer.runtime.program.program import Program


def interleaved(program: Program, in_step: bool = False) -> Iterator[tuple[str, int, Action]]:
    """(device, position, action) for all actions; a RECV comes after its SEND.

    Parameters
    ----------
    in_step
        Take one action of every device at a time; else every device goes on as far as it can.

    Raises
    ------
    InternalError
        If the program hangs; names the actions at which devices wait for each other.
    """
    sent: set[tuple[str, str, str]] = set()
    position = dict.fromkeys(program.actions, 0)
    moved = True
    while moved:
        moved = False
        for device, actions in program.actions.items():
            while position[device] < len(actions):
                action = actions[position[device]]
                if isinstance(action, Recv):
                    if (action.tensor, action.source, device) not in sent:
                        break
                    sent.remove((action.tensor, action.source, device))
                if isinstance(action, Send):
                    sent.add((action.tensor, device, action.target))
                yield device, position[device], action
                position[device] += 1
                moved = True
                if in_step:
                    break
    stuck = [
        f"{name} waits at {actions[position[name]]} (line {program.line(name, position[name])})"
        for name, actions in program.actions.items()
        if position[name] < len(actions)
    ]
    if stuck:
        raise InternalError(f"the program would hang: {'; '.join(stuck)}")
