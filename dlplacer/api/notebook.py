"""Values as notebooks show them: a headline, figures, small tables, and a plan's devices over time.

Self-contained HTML of a few kilobytes, without scripts; colours follow the notebook's theme.
"""

from collections import defaultdict
from html import escape

from dlplacer.api.views import Facts, Strip, blocks_of, subject_of
from dlplacer.core.plan import Plan
from dlplacer.core.table import Table
from dlplacer.core.units import format_seconds
from dlplacer.report.page.columns import visible

_ROWS = 16
"""Rows of a table that are shown: about a screen, with the headline."""
_LONGEST_NAME = 60
_CELL = "padding:.15em 1em .15em 0;border:0;text-align:"
_TABLE = "border-collapse:collapse;margin:.4em 0;border:0;font-variant-numeric:tabular-nums"
_ROW = '<tr style="background:none">'

_COLUMNS = 240
"""Columns of the picture: with one rectangle for each, eight devices take 100 KiB at most."""
_MOST_DEVICES = 8
_WIDTH, _HEIGHT, _STEP, _NAMES = 720, 12, 16, 90
# As in the pictures of `dlplacer.report.plot`, which need matplotlib.
_COLORS = {"forward": "#4c78a8", "backward": "#f2a154", "optimizer": "#54a24b", "": "#9aa0a6"}


def html(value: object) -> str:
    """The fragment that a notebook shows for a value that has a view."""
    shown = [f'<div style="margin:.2em 0 .4em"><b>{type(value).__name__}</b> {_text(subject_of(value))}</div>']
    for block in blocks_of(value):
        if isinstance(block, Strip):
            shown.append(_strip(block.plan))
        elif isinstance(block, Table):
            shown.append(_table(block))
        elif isinstance(block, list):
            shown.append(_facts(block))
        elif block:
            shown.append(f'<div style="opacity:.7;margin:.3em 0">{_text(block, 240)}</div>')
    return f'<div style="line-height:1.45;overflow-x:auto">{"".join(shown)}</div>'


def _facts(facts: Facts) -> str:
    rows = "".join(
        f'{_ROW}<td style="{_CELL}left;opacity:.7">{_text(name)}</td>'
        f'<td style="{_CELL}left">{_text(value, 160)}</td></tr>'
        for name, value in facts
        if value
    )
    return f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>'


def _table(table: Table) -> str:
    """Texts are set flush left, figures flush right; further rows than a screen holds are counted."""
    if not table.rows:
        return ""
    sides = table.sides
    top = "".join(
        f'<th style="{_CELL}{side}">{_text(head)}</th>' for head, side in zip(table.heads, sides, strict=True)
    )
    cells = table.cells
    body = "".join(
        _ROW
        + "".join(f'<td style="{_CELL}{side}">{_text(cell)}</td>' for cell, side in zip(row, sides, strict=True))
        + "</tr>"
        for row in cells[:_ROWS]
    )
    hidden = len(cells) - _ROWS
    if hidden > 0:
        body += f'<tr><td colspan="{len(sides)}" style="{_CELL}left;opacity:.7">… {hidden} more</td></tr>'
    head = f'<thead><tr style="border-bottom:1px solid #8888">{top}</tr></thead>'
    return f'<table style="{_TABLE}">{head}<tbody>{body}</tbody></table>'


def _text(text: str, limit: int = _LONGEST_NAME) -> str:
    """A name as HTML may show it: escaped, control and direction characters as codes, a long one without its middle."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[limit // 2 + 1 - limit :]}"
    return escape(visible(text))


def _strip(plan: "Plan") -> str:
    """A row per device, dark where it is busy, in the colour of the phase that takes most of a column's time."""
    shown = plan.topology.devices[:_MOST_DEVICES]
    if not plan.makespan_s:
        return ""
    busy = _busy(plan)
    rows = [_bar(place, device.id, busy[device.id]) for place, device in enumerate(shown)]
    left = len(plan.topology.devices) - len(shown)
    foot = f"0 to {format_seconds(plan.makespan_s)}" + (f"; {left} more devices" if left else "")
    seen = {phase for columns in busy.values() for _, phase in columns}
    phases = [phase for phase in _COLORS if phase in seen]
    legend = " ".join(f'<span style="color:{_COLORS[phase]}">■</span> {phase or "other"}' for phase in phases)
    height = _STEP * len(shown)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" style="max-width:100%;display:block" role="img" '
        f'aria-label="devices over time" font-size="11" fill="currentColor">{"".join(rows)}</svg>'
        f'<div style="opacity:.8;font-size:85%">{foot} &nbsp; {legend}</div>'
    )


def _busy(plan: "Plan") -> dict[str, dict[tuple[int, str], float]]:
    """Device → (column, phase) → share of the column's time."""
    column_s = plan.makespan_s / _COLUMNS
    busy: dict[str, dict[tuple[int, str], float]] = {device.id: defaultdict(float) for device in plan.topology.devices}
    for entry in plan.ops:
        phase = plan.graph.op(entry.op).phase or ""
        first, last = int(entry.start_s / column_s), min(_COLUMNS - 1, int(entry.end_s / column_s))
        for column in range(first, last + 1):
            begin_s, end_s = max(entry.start_s, column * column_s), min(entry.end_s, (column + 1) * column_s)
            if end_s > begin_s:
                busy[entry.device][column, phase] += (end_s - begin_s) / column_s
    return busy


def _bar(place: int, device: str, busy: dict[tuple[int, str], float]) -> str:
    """The name, a pale bar for the whole step, and a rectangle for each run of columns that look alike."""
    top, unit = place * _STEP, (_WIDTH - _NAMES) / _COLUMNS
    name = "".join(one if one.isprintable() else "?" for one in device)
    name = name if len(name) <= 12 else f"{name[:6]}…{name[-5:]}"
    parts = [
        f'<text x="0" y="{top + _HEIGHT - 2}">{escape(name)}</text>',
        f'<rect x="{_NAMES}" y="{top}" width="{_WIDTH - _NAMES}" height="{_HEIGHT}" fill="#8882"/>',
    ]
    looks: list[tuple[str, float] | None] = []
    for column in range(_COLUMNS):
        shares = {phase: busy[column, phase] for phase in _COLORS if (column, phase) in busy}
        total = round(min(1.0, sum(shares.values())), 1)
        looks.append((max(shares, key=shares.__getitem__), total) if total else None)
    begin = 0
    for column in range(1, _COLUMNS + 1):
        if column < _COLUMNS and looks[column] == looks[begin]:
            continue
        look = looks[begin]
        if look is not None:
            x, width = _NAMES + begin * unit, (column - begin) * unit
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT}" fill="{_COLORS[look[0]]}" '
                f'fill-opacity="{look[1]}"/>'
            )
        begin = column
    return "".join(parts)
