"""Type checks of arguments, and the text of values in messages: errors show the value and the accepted types."""

import json
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches

from dlplacer.core.errors import InputError

Kinds = type | tuple[type, ...]

_brief = reprlib.Repr()
_brief.maxlevel = 2
_brief.maxtuple = _brief.maxlist = _brief.maxdict = _brief.maxset = 3
_brief.maxstring = _brief.maxother = 60
in_short = _brief.repr
"""The repr of a value, shortened to part of a line."""


def brief(value: object) -> str:
    """A value, shortened to part of a line, with its type: ``'25' (str)``; only the type if it has no literal."""
    kind = type(value).__name__
    if value is None:
        return "None"
    try:
        text = in_short(value)
    except Exception:  # A repr defined by the user may fail; it must not hide the mistake.
        text = ""
    return f"of type {kind}" if not text or text.startswith("<") or "(" in text[:40] else f"{text} ({kind})"


def shown(value: object) -> str:
    """The value of a field in a file or record, shortened to part of a line."""
    return json.dumps(value) if value is None or isinstance(value, bool) else in_short(value)


def field_path(parts: Iterable[str | int]) -> str:
    """Path of a value in a file or a record: ``nodes[3].time_s``, or ``the file``."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "the file"


def short_name(name: str) -> str:
    """A name in quotes, without its middle if it is long; ``unnamed`` if it is empty."""
    return in_short(name) if name else "unnamed"


def printable(text: str) -> str:
    """A text without quotes, shortened to part of a line, with control and direction characters escaped."""
    return in_short(text)[1:-1]


def refuse(owner: str, name: str, value: object, accepted: str) -> InputError:
    """The InputError for a value of the wrong type; the message has the owner, the value and the accepted types."""
    prefix = f"{owner}: " if owner else ""
    return InputError(f"{prefix}{name} is {brief(value)}; give {accepted}")


def expect(owner: str, name: str, value: object, kinds: Kinds, accepted: str) -> None:
    """Raise InputError with owner, value and accepted types unless the value has one of the types."""
    if not isinstance(value, kinds):
        raise refuse(owner, name, value, accepted)


def unknown(what: str, name: object, known: Iterable[str], where: str) -> InputError:
    """The InputError for an unknown name; the message lists similar names, or else the first known names."""
    if not isinstance(name, str):
        return refuse(where, what, name, f"the id of one of its {what}s")
    names = list(known)
    near = get_close_matches(name, names, n=3) or names[:3]
    return InputError(f"{where} has no {what} {name!r}; it has {', '.join(map(repr, near))}{', …' * (len(names) > 3)}")
