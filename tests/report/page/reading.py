"""Reading a page back: its tables, its data, and what it might load."""

import json
import re
from functools import cached_property
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "img", "br"}


class ReadPage(HTMLParser):
    """Rows of all tables, attributes of all tags, scripts; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.highlights: list[str] = []
        self.scripts: list[str] = []
        self.title = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag in ("dt", "dd"):
            self.highlights.append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1:] + self.open[-2:-1]
        if {"td", "th"} & set(inside):
            self.rows[-1][-1] += data
        if {"dt", "dd"} & set(inside):
            self.highlights[-1] += data
        if inside[:1] == ["script"]:
            self.scripts[-1] += data
        if inside[:1] == ["title"]:
            self.title += data

    @cached_property
    def data(self) -> Any:
        """What the script reads."""
        found: Any = json.loads(self.scripts[0])
        return found

    @property
    def addresses(self) -> list[str]:
        """Everything that a browser might load."""
        loads = {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href"}
        return [value or "" for tag, name, value in self.attributes if name in loads]

    def seconds(self, column: list[int]) -> list[float]:
        """A column of times in seconds."""
        return [value * self.data["unitS"] for value in column]


def urls_in(text: str) -> list[str]:
    """Addresses with a scheme that loads something from elsewhere."""
    return re.findall(r"(?:https?:)?//[a-z0-9][\w.-]*\.[a-z]{2,}[^\s\"']*|wss?://\S+|@import|url\([^)]*\)", text)
