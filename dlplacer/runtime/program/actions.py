"""What a device does, one action a line: the text form of a plan that is ready to run.

COMPUTE, SEND, RECV and FREE say it for every device. A device with streams gets, by a lowering pass, the actions below
them too: the order of its streams and the lifetime of what they use is then part of the program.
"""

import json
import re
from dataclasses import dataclass

from dlplacer.core.errors import InputError


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


@dataclass(frozen=True, slots=True)
class Copy:
    """``COPY tensor -> device ON stream``: enqueue the copy that the SEND behind it hands over."""

    tensor: str
    target: str
    stream: str

    def __str__(self) -> str:
        return f"COPY {quoted(self.tensor)} -> {quoted(self.target)} ON {quoted(self.stream)}"


@dataclass(frozen=True, slots=True)
class Record:
    """``RECORD event ON stream``: the event has happened once the stream has done what it was given so far."""

    event: str
    stream: str

    def __str__(self) -> str:
        return f"RECORD {quoted(self.event)} ON {quoted(self.stream)}"


@dataclass(frozen=True, slots=True)
class Wait:
    """``WAIT event ON stream``: the stream goes on once the event has happened; the thread goes on at once."""

    event: str
    stream: str

    def __str__(self) -> str:
        return f"WAIT {quoted(self.event)} ON {quoted(self.stream)}"


@dataclass(frozen=True, slots=True)
class Sync:
    """``SYNC event``: the thread goes on once the event has happened."""

    event: str

    def __str__(self) -> str:
        return f"SYNC {quoted(self.event)}"


@dataclass(frozen=True, slots=True)
class Hold:
    """``HOLD tensor FOR stream``: once the tensor is freed, its memory waits for what the stream has by then."""

    tensor: str
    stream: str

    def __str__(self) -> str:
        return f"HOLD {quoted(self.tensor)} FOR {quoted(self.stream)}"


StreamAction = Copy | Record | Wait | Sync | Hold
Action = Compute | Send | Recv | Free | StreamAction

_NAME = r'("(?:[^"\\]|\\.)*"|[^\s"]+)'
_FORMS = {
    "COMPUTE": (Compute, re.compile(f"COMPUTE {_NAME}")),
    "SEND": (Send, re.compile(f"SEND {_NAME} -> {_NAME}")),
    "RECV": (Recv, re.compile(f"RECV {_NAME} <- {_NAME}")),
    "FREE": (Free, re.compile(f"FREE {_NAME}")),
    "COPY": (Copy, re.compile(f"COPY {_NAME} -> {_NAME} ON {_NAME}")),
    "RECORD": (Record, re.compile(f"RECORD {_NAME} ON {_NAME}")),
    "WAIT": (Wait, re.compile(f"WAIT {_NAME} ON {_NAME}")),
    "SYNC": (Sync, re.compile(f"SYNC {_NAME}")),
    "HOLD": (Hold, re.compile(f"HOLD {_NAME} FOR {_NAME}")),
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
        raise InputError(
            f"{line!r} is no action; write COMPUTE op, SEND t -> device, RECV t <- device or FREE t, or for streams "
            "COPY t -> device ON stream, RECORD event ON stream, WAIT event ON stream, SYNC event or HOLD t FOR stream"
        )
    action: Action = form[0](*(unquoted(name) for name in match.groups()))
    return action


def quoted(name: str) -> str:
    """The name itself, or a JSON string if it has spaces or quotes, or is empty."""
    return name if re.fullmatch(r'[^\s"]+', name) else json.dumps(name)


def unquoted(text: str) -> str:
    """The name that is written like this.

    Raises
    ------
    InputError
        If it begins as a JSON string and is none.
    """
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError as error:
        raise InputError(f"{text!r} is no name; write a JSON string, or the name without quotes") from error
