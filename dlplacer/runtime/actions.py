"""What a device does, one action a line: the text form of a plan that is ready to run."""

import json
import re
from dataclasses import dataclass

from dlplacer.errors import InputError


@dataclass(frozen=True, slots=True)
class Compute:
    """``COMPUTE op``: run an op whose inputs are all here."""

    op: str

    def __str__(self) -> str:
        return f"COMPUTE {quoted(self.op)}"


@dataclass(frozen=True, slots=True)
class Send:
    """``SEND tensor -> device``: start moving a tensor, and go on."""

    tensor: str
    target: str

    def __str__(self) -> str:
        return f"SEND {quoted(self.tensor)} -> {quoted(self.target)}"


@dataclass(frozen=True, slots=True)
class Recv:
    """``RECV tensor <- device``: wait until a tensor is here."""

    tensor: str
    source: str

    def __str__(self) -> str:
        return f"RECV {quoted(self.tensor)} <- {quoted(self.source)}"


@dataclass(frozen=True, slots=True)
class Free:
    """``FREE tensor``: forget a tensor that nothing here needs any more."""

    tensor: str

    def __str__(self) -> str:
        return f"FREE {quoted(self.tensor)}"


Action = Compute | Send | Recv | Free

_NAME = r'("(?:[^"\\]|\\.)*"|[^\s"]+)'
_FORMS = {
    "COMPUTE": (Compute, re.compile(f"COMPUTE {_NAME}")),
    "SEND": (Send, re.compile(f"SEND {_NAME} -> {_NAME}")),
    "RECV": (Recv, re.compile(f"RECV {_NAME} <- {_NAME}")),
    "FREE": (Free, re.compile(f"FREE {_NAME}")),
}


def parse_action(line: str) -> Action:
    """The action that prints as this line.

    Raises
    ------
    InputError
        If the line is none.
    """
    form = _FORMS.get(line.split(" ", 1)[0])
    match = form[1].fullmatch(line) if form else None
    if form is None or match is None:
        raise InputError(f"{line!r} is no action; write COMPUTE op, SEND t -> device, RECV t <- device or FREE t")
    action: Action = form[0](*(unquoted(name) for name in match.groups()))
    return action


def quoted(name: str) -> str:
    """The name itself, or a JSON string if it has spaces or quotes, or is empty."""
    return name if re.fullmatch(r'[^\s"]+', name) else json.dumps(name)


def unquoted(text: str) -> str:
    """The name that is written like this."""
    return str(json.loads(text)) if text.startswith('"') else text
