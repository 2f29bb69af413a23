"""A program: the actions of every device, in order. It prints to text that parses back."""

from collections.abc import Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.runtime.program.actions import Action, parse_action, quoted, unquoted


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

        Raises
        ------
        InputError
            With the number of the line that is no action or stands before any ``DEVICE`` line.
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
