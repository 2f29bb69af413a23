"""Texts of a page: each once, with what cannot be seen written as codes."""

import unicodedata

# Control, format, surrogate, private use, line separators: invisible, or (bidi) able to reorder what is beside them.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """The text with every character that cannot be seen, or that turns writing direction, as its code: ``[U+202E]``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_code(character) if unicodedata.category(character) in _HIDDEN else character for character in text)


def _code(character: str) -> str:
    return f"[U+{ord(character):04X}]"


class Texts:
    """A table of texts that columns refer to by position; 0 is the empty text."""

    def __init__(self) -> None:
        self._position: dict[str, int] = {"": 0}

    def of(self, text: str | None) -> int:
        """The position of a text, which becomes part of the table."""
        return self._position.setdefault(visible(text or ""), len(self._position))

    @property
    def table(self) -> list[str]:
        """[position] → text."""
        return list(self._position)
