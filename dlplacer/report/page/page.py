"""A plan as one HTML page; two plans side by side; a run beside its prediction; the plans of several methods.

A page is one file: template, style, script and data in one HTML text that loads nothing.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.core.table import Table
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.planning.tables import figures
from dlplacer.report.page.columns import PageClock, graph_columns, schedule_columns, visible
from dlplacer.report.summary import headline, speedup_text, subject

_ASSETS = files("dlplacer.report.page") / "assets"
# In order of dependence; the scripts share one scope.
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
    """A table of named values, with one column per schedule; without `heads`, with a single column."""

    title: str
    rows: Sequence[Sequence[str]]
    heads: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """The content of a page: heading, key figures at its top, figures at its side, and data for the script as JSON.

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
    template = environment.from_string((_ASSETS / "page.html.jinja").read_text(encoding="utf-8"))
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
    return "\n".join((_ASSETS / folder / f"{name}{suffix}").read_text(encoding="utf-8") for name in names)


def highlights(plan: Plan) -> list[tuple[str, str]]:
    """The key figures of a plan: bound, gap, speedup and status."""
    bound, gap, faster = format_seconds(plan.lower_bound_s), f"{100 * plan.gap:.3g} %", speedup_text(plan)
    return [("bound", bound), ("gap", gap), *([("speedup", faster)] if faster else []), ("status", plan.status)]


def result_table(plans: Sequence[tuple[str, Plan]]) -> FigureTable:
    """Time, bound, gap, speedup and method; a column for each plan."""
    return _beside("Result", [_result(plan) for _, plan in plans], plans)


def assumption_table(plans: Sequence[tuple[str, Plan]]) -> FigureTable:
    """Every option of the problem; a column for each plan if plans differ."""
    return _beside("Assumptions", [plan.options.to_dict() for _, plan in plans], plans)


def _beside(title: str, columns: Sequence[Mapping[str, str]], plans: Sequence[tuple[str, Plan]]) -> FigureTable:
    """A table with a column of values for each plan, or a single column if all plans agree."""
    shown = columns if any(column != columns[0] for column in columns) else columns[:1]
    names = dict.fromkeys(name for column in shown for name in column)
    rows = [(name, *(column.get(name, "–") for column in shown)) for name in names]
    return FigureTable(title, rows, [name for name, _ in plans] if len(shown) > 1 else ())


def _result(plan: Plan) -> dict[str, str]:
    record = {
        "graph": f"{plan.graph.name or 'unnamed'}: {len(plan.graph.ops)} ops, {len(plan.graph.edges)} edges",
        "machine": f"{plan.topology.name or 'unnamed'}: {len(plan.topology.devices)} devices",
        "status": plan.status,
        "step_time_s": plan.makespan_s,
        "period_s": plan.period_s,
        "lower_bound_s": plan.lower_bound_s,
        "optimality_gap": plan.gap,
        "rounding_s": plan.rounding_s,
        "speedup_over_one_device": speedup_text(plan) or "none: the plan takes no time",
        "transfers": f"{len(plan.transfers)}, {format_bytes(sum(sent.bytes for sent in plan.transfers))}",
        "method": f"{plan.method}, {format_seconds(plan.solve_s)}",
    }
    return dict(figures(record))


_TOP = 4


def html_page(plan: Plan, against: Plan | None = None, names: tuple[str, str] = ("A", "B")) -> str:
    """A self-contained HTML page about a plan: schedule, memory, modules and tables to explore.

    A second plan is drawn on the same axis, device by device; `names` are the names of the two plans.
    """
    if against is None:
        figures = [result_table([("", plan)]), assumption_table([("", plan)])]
        return render_page(Page(headline(plan), highlights(plan), figures, schedule_data([("plan", plan)])))
    both = [(names[0], plan), (names[1], against)]
    objectives = against.options.objective, plan.options.objective
    if objectives[0] != objectives[1]:
        raise InputError("one plan has objective {!r}, the other {!r}; give plans of one objective".format(*objectives))
    title = f"{names[0]} against {names[1]}: {' and '.join(dict.fromkeys(map(subject, (plan, against))))}"
    figures = [result_table(both), assumption_table(both)]
    top = [(name, f"{format_seconds(each.value_s)}, gap {100 * each.gap:.3g} %") for name, each in both]
    if plan.value_s:
        top.append((f"{names[1]} ÷ {names[0]}", f"{against.value_s / plan.value_s:.3f}"))
    return render_page(Page(title, top, figures, schedule_data(both, (0, 1))))


def run_page(predicted: Plan, measured: Plan, figures: Sequence[tuple[str, str]], conclusion: str = "") -> str:
    """The page of a run: its predicted and a recorded step on one axis, device by device.

    `figures` are names and values of the run's results, and the first four also head the page; `conclusion` is a
    sentence that sums them up.
    """
    both = [("predicted", predicted), ("measured", measured)]
    title = f"{subject(predicted)}: predicted and measured"
    tables = [FigureTable("Run", figures), assumption_table([("", predicted)])]
    data = schedule_data(both, (0, 1), is_run=True)
    return render_page(Page(title, figures[:_TOP], tables, data, conclusion))


_UNITS = {"seconds": "time", "times": "ratio", "percent": "share", "bytes": "bytes", "number": "number"}
"""Format of a column → the unit with which the page's script writes the numbers."""


def page_table(title: str, table: Table, unit_s: float, widths: Mapping[str, int]) -> dict[str, Any]:
    """A table for the page's script, with times in units of `unit_s`; `widths`: column of long texts → pixels."""
    shown = []
    for column, side, values in zip(table.columns, table.sides, zip(*table.rows, strict=True), strict=True):
        unit = _UNITS.get(column.format) or ("number" if side == "right" else None)
        cells: list[Any] = [visible(value) if isinstance(value, str) else value for value in values]
        if unit == "time":
            cells = [None if value is None else round(value / unit_s) for value in values]
        described = {"name": column.head or column.name, "values": cells}
        described |= {} if unit is None else {"unit": unit}
        shown.append(described | ({"width": widths[column.name]} if column.name in widths else {}))
    return {"title": title, "columns": shown}


def schedule_data(
    plans: Sequence[tuple[str, Plan]], shown: Sequence[int] = (0,), is_run: bool = False, **more: Any
) -> dict[str, Any]:
    """The data of a page; its schedules share one unit of time and one table of texts, and each graph occurs once.

    `shown`: positions of the schedules that the page shows at first. `more`: further data for the script, such as
    ``tables``.
    """
    ends_s = [max(plan.makespan_s, plan.lower_bound_s, *(entry.end_s for entry in plan.ops)) for _, plan in plans]
    texts, clock = {"": 0}, PageClock(max(ends_s))
    graphs: list[Plan] = []
    numbers = []
    for _, plan in plans:
        seen = [(other.graph.ops, other.graph.edges) for other in graphs]
        same = (plan.graph.ops, plan.graph.edges)
        graphs += [] if same in seen else [plan]
        numbers.append(seen.index(same) if same in seen else len(seen))
    return {
        "unitS": clock.unit_s,
        "shown": list(shown),
        "graphs": [graph_columns(plan, texts) for plan in graphs],
        "schedules": [
            schedule_columns(plan, name, number, clock, texts, is_run)
            for (name, plan), number in zip(plans, numbers, strict=True)
        ],
        **more,
        # Last, because the columns above add texts.
        "texts": list(texts),
    }
