"""Texts that show as something else than they are."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from dlplacer.files.field_path import field_path

_MISLEADING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\xad\u034f\u115f\u1160\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Control characters, which a terminal obeys; marks that turn the direction of the text around them (Trojan Source,
Boucher and Anderson 2023); characters of no width, so that two names look like one; and halves of surrogate pairs,
which no terminal or file can be given."""
_ESCAPED = re.compile(
    r"\\u(?:00[0189]|007f|00ad|034f|061c|11(?:5f|60)|180e|200[b-f]|202[89a-e]|206|3164|feff|ffa0|fff[9ab]|d[89a-f])",
    re.IGNORECASE,
)
_FREE = "meta"


def misleading_texts(value: Any, text: str) -> Iterator[str]:
    """What is wrong with texts in a file's JSON value; free-form ``meta``, which nothing prints, is left alone.

    Parameters
    ----------
    text
        The file. It is searched first: few files hold such a text, and none is worth a walk over a million nodes.
    """
    if _MISLEADING.search(text) or _ESCAPED.search(text):
        yield from _found(value)


def _found(value: Any) -> Iterator[str]:
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        parts, value = waiting.pop()
        if isinstance(value, str) and (found := _MISLEADING.search(value)) and found[0] not in "\n\t":
            yield f"{field_path(parts)}: holds {_named(found[0])}; remove it"
        if isinstance(value, dict):
            waiting += [((*parts, _visible(key)), entry) for key, entry in value.items() if key != _FREE]
            waiting += [((*parts, "a key"), key) for key in value]
        elif isinstance(value, list):
            waiting += [((*parts, position), entry) for position, entry in enumerate(value)]


def _named(character: str) -> str:
    code = f"(U+{ord(character):04X})"
    if unicodedata.category(character) == "Cs":
        return f"half a surrogate pair {code}, which is no text"
    return f"{unicodedata.name(character, 'a control character')} {code}, which hides what it says"


def _visible(key: str) -> str:
    return _MISLEADING.sub(lambda found: f"\\u{ord(found[0]):04x}", key)
