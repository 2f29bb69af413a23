"""A program: the actions of every device, in order. It prints to text that parses back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InputError, InternalError
from dlplacer.runtime.program.actions import Action, Recv, Send, parse_action, quoted, unquoted


@dataclass(frozen=True)
class Program:
    """Device name → its actions in order; what crosses devices goes through matching SEND and RECV."""

    actions: Mapping[str, tuple[Action, ...]]

    def __str__(self) -> str:
        lines = []
        for device, entries in self.actions.items():
            lines += [f"DEVICE {quoted(device)}", *(f"  {action}" for action in entries)]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Program":
        """The program that prints as this text.

        Raises InputError with the number of the line that is no action or stands before any ``DEVICE`` line.
        """
        actions: dict[str, list[Action]] = {}
        current: list[Action] | None = None
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                if line.startswith("DEVICE "):
                    current = actions.setdefault(unquoted(line.removeprefix("DEVICE ")), [])
                elif line.strip():
                    if current is None:
                        raise InputError(f"{line!r} stands before the first DEVICE line")
                    current.append(parse_action(line.strip()))
            except InputError as error:
                raise InputError(f"line {number}: {error}") from error
        return cls({name: tuple(entries) for name, entries in actions.items()})

    def line(self, device: str, position: int) -> int:
        """Number of the line on which an action of a device prints, from 1."""
        before = 0
        for name, entries in self.actions.items():
            if name == device:
                break
            before += 1 + len(entries)
        return before + position + 2

    def where(self, device: str, position: int) -> str:
        """An action of a device for messages: ``gpu0, line 7: SEND x -> gpu1``."""
        return f"{device}, line {self.line(device, position)}: {self.actions[device][position]}"


def interleaved(program: Program, in_step: bool = False) -> Iterator[tuple[str, int, Action]]:
    """(device, position, action) for all actions in an order in which threads can take them: a RECV after its SEND.

    Every device goes on as far as it can, or by one action at a time (`in_step`). InternalError if the program hangs.
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
