"""A page as one file: template, style, script and data in one HTML text that loads nothing."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from dlplacer.report.page.columns import visible

_ASSETS = files("dlplacer.report.page") / "assets"
# In the order in which they need each other; all share one scope.
_STYLES = ("theme", "layout", "controls", "panels", "tables")
_SCRIPTS = (
    *("dom", "units", "theme", "decode", "state", "palette", "viewport"),
    *("live_memory", "totals", "rows", "draw_spans", "draw_rows", "draw_paths", "draw_axis", "timeline"),
    *("hit", "tooltip", "pointer", "keys"),
    *("query", "table", "plan_tables", "module_tree", "total_table", "alive_table", "details", "search"),
    *("line_chart", "main"),
)


@dataclass(frozen=True)
class FigureTable:
    """Figures with names, one column of them for every schedule; without `heads`, one column."""

    title: str
    rows: Sequence[Sequence[str]]
    heads: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """The content of a page: heading, the few figures at its top, figures at its side, and data for the script as JSON.

    `conclusion` is a sentence below the heading.
    """

    title: str
    highlights: Sequence[tuple[str, str]]
    figures: Sequence[FigureTable]
    data: Mapping[str, Any] = field(default_factory=dict)
    conclusion: str = ""


def render_page(page: Page) -> str:
    """The HTML text of a page; the same page gives the same text.

    Its content security policy allows its own script, by hash, and nothing else: no name can become code, and nothing
    is loaded from anywhere.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = visible
    template = environment.from_string(_read(_ASSETS / "page.html.jinja"))
    script = _joined("script", ".js", _SCRIPTS)
    return template.render(
        page=page,
        style=_joined("style", ".css", _STYLES),
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        # Safe inside a script element: all ASCII, and no ``<`` that could end the element.
        data=json.dumps(page.data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )


@cache
def _joined(folder: str, suffix: str, names: tuple[str, ...]) -> str:
    return "\n".join(_read(_ASSETS / folder / f"{name}{suffix}") for name in names)


def _read(path: Traversable) -> str:
    return path.read_text(encoding="utf-8")
