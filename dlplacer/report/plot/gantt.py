"""Devices and links over time."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.report.critical_path import Step, critical_path
from dlplacer.report.link_use import LinkUse, link_uses
from dlplacer.report.page.summary import busy_s, headline, verdict
from dlplacer.report.plot.positions.op_blocks import blocks_of, short_names
from dlplacer.report.plot.style.axes import axes_or_new, inches, label_seconds, plain, text_points
from dlplacer.report.plot.style.colors import CRITICAL, GUIDE, IDLE, PHASE, TEXT, TRANSFER, block_colors, ink_on
from dlplacer.report.plot.style.op_kinds import short_kind

Row = str | tuple[str, str]
"""A device, or a link direction."""

_DEVICE_HEIGHT = 0.8
_LINK_HEIGHT = 0.3
_LINK_STEP = 0.42
_OUTLINED_POINTS = 4
_FONT_POINTS = 7
_LEGEND_INCHES = 0.17
_MOST_LINK_ROWS = 16
_TITLE_AND_AXIS_INCHES = 1.4
_ROW_INCHES = 0.72


def gantt_size(plan: Plan) -> tuple[float, float]:
    """Inches, width and height, that show every row of `plot_gantt`, a device's row always as high."""
    lowest, highest = _limits(_rows(plan, _shown(link_uses(plan), ())))
    return 16.0, min(40.0, _TITLE_AND_AXIS_INCHES + _ROW_INCHES * (lowest - highest))


def plot_gantt(plan: Plan, ax: Axes | None = None, color_by: str = "phase", mark_path: bool = True) -> Axes:
    """A Gantt chart: one row per device and per link direction that is used; returns the Axes, with time in seconds.

    Ops that take no time are not drawn. The line below the bars is the critical path, from row to row. Of many link
    directions only the busiest and those on the critical path have a row; a note says how many have none.

    Parameters
    ----------
    color_by
        ``phase``, or ``module`` for the blocks of the model.
    mark_path
        Whether to draw the critical path: a step of a run has none.

    Raises
    ------
    InputError
        If `color_by` is neither.
    """
    color_of, legend = _colors(plan, color_by)
    ax = axes_or_new(ax, gantt_size(plan))
    path = critical_path(plan) if mark_path else ()
    every = link_uses(plan)
    uses = _shown(every, path)
    rows: dict[Row, float] = _rows(plan, uses)
    ax.set_xlim(0, plan.makespan_s or 1.0)
    ax.set_ylim(*_limits(rows))
    _draw_idle(ax, plan, rows)
    _draw_ops(ax, plan, rows, color_of)
    _draw_transfers(ax, rows, uses)
    _draw_critical_path(ax, path, rows, uses)
    _draw_kinds(ax, plan, rows, color_of)
    _label(ax, plan, rows)
    if len(uses) < len(every):
        left_out = f"not shown: {len(every) - len(uses)} link directions that are used less"
        ax.annotate(left_out, (0, 0), (2, 3), "axes fraction", "offset points", fontsize=7, color=GUIDE)
    several = " (darker: several)" if plan.options.contention == "none" else ""
    legend += [Patch(color=TRANSFER, label=f"transfer{several}")] if uses else []
    legend += [Patch(color=IDLE, label="idle")]
    legend += [Line2D([], [], color=CRITICAL, linewidth=2, label="critical path")] if mark_path else []
    if plan.lower_bound_s:
        bound: dict[str, Any] = {"color": TEXT, "linewidth": 1.2, "linestyle": (0, (4, 2)), "label": "lower bound"}
        ax.axvline(plan.lower_bound_s, **bound)
        legend.append(Line2D([], [], **bound))
    fitting = max(6, int(inches(ax)[1] / _LEGEND_INCHES))
    columns = -(-len(legend) // fitting)
    beside = (1.005, 1.0)
    ax.legend(handles=legend, loc="upper left", bbox_to_anchor=beside, ncols=columns, frameon=False, fontsize=8)
    return ax


def _colors(plan: Plan, color_by: str) -> tuple[Callable[[str], str], list[Artist]]:
    if color_by == "phase":
        phases = {op.phase for op in plan.graph.ops}
        legend: list[Artist] = [Patch(color=PHASE[phase], label=phase or "op") for phase in PHASE if phase in phases]
        return lambda op_id: PHASE[plan.graph.op(op_id).phase], legend
    if color_by == "module":
        blocks = blocks_of(plan)
        colors, names = block_colors(dict.fromkeys(blocks.values())), short_names(blocks.values())
        legend = [Patch(color=colors[block], label=plain(names[block], 24)) for block in names]
        legend += [Patch(color=colors[""], label="no module")] if "" in blocks.values() else []
        return lambda op_id: colors[blocks[op_id]], legend
    raise InputError(f"color_by is {color_by!r}; use phase or module")


def _shown(uses: dict[tuple[str, str], list[LinkUse]], path: tuple[Step, ...]) -> dict[tuple[str, str], list[LinkUse]]:
    """Link directions that get a row: all if they are few, else those that the critical path or transfers use most."""
    critical = set(map(id, path))

    def weight(hop: tuple[str, str]) -> tuple[float, float]:
        on_path_s = sum(use.end_s - use.start_s for use in uses[hop] if id(use.transfer) in critical)
        return on_path_s, sum(use.end_s - use.start_s for use in uses[hop])

    chosen = set(sorted(uses, key=weight, reverse=True)[:_MOST_LINK_ROWS])
    return {hop: found for hop, found in uses.items() if hop in chosen}


def _limits(rows: Mapping[Row, float]) -> tuple[float, float]:
    """Lower and upper end of the y axis."""
    return max(rows.values()) + 0.5, -0.6


def _rows(plan: Plan, uses: Mapping[tuple[str, str], list[LinkUse]]) -> dict[Row, float]:
    """Row → y of its middle, devices above links."""
    rows: dict[Row, float] = {device.id: float(position) for position, device in enumerate(plan.topology.devices)}
    below = len(rows) - 0.2
    return rows | {hop: below + _LINK_STEP * position for position, hop in enumerate(uses)}


def _height(row: Row) -> float:
    return _DEVICE_HEIGHT if isinstance(row, str) else _LINK_HEIGHT


def _draw_idle(ax: Axes, plan: Plan, rows: Mapping[Row, float]) -> None:
    for row, middle in rows.items():
        corner = (0, middle - _height(row) / 2)
        ax.add_patch(Rectangle(corner, plan.makespan_s, _height(row), facecolor=IDLE, edgecolor="none", zorder=0.5))


def _draw_ops(ax: Axes, plan: Plan, rows: Mapping[Row, float], color_of: Callable[[str], str]) -> None:
    """Bars that are wide enough get a white outline; on the others it would pass for idle time."""
    outlined_s = _OUTLINED_POINTS * (plan.makespan_s or 1.0) / (72 * inches(ax)[0])
    bars: dict[tuple[str, str, bool], list[tuple[float, float]]] = defaultdict(list)
    for entry in _timed(plan):
        width_s = entry.end_s - entry.start_s
        bars[entry.device, color_of(entry.op), width_s > outlined_s].append((entry.start_s, width_s))
    for (device, color, outlined), spans in bars.items():
        edge = "white" if outlined else color
        place = (rows[device] - _DEVICE_HEIGHT / 2, _DEVICE_HEIGHT)
        ax.broken_barh(spans, place, facecolors=color, edgecolors=edge, linewidths=0.3, label=f"ops on {device}")


def _draw_transfers(ax: Axes, rows: Mapping[Row, float], uses: Mapping[tuple[str, str], list[LinkUse]]) -> None:
    for hop, found in uses.items():
        spans = [(use.start_s, use.end_s - use.start_s) for use in found]
        ax.broken_barh(
            spans,
            (rows[hop] - _LINK_HEIGHT / 2, _LINK_HEIGHT),
            facecolors=TRANSFER,
            edgecolors=TRANSFER,
            linewidths=0.4,
            alpha=0.6,
            label="transfers",
        )


def _draw_critical_path(
    ax: Axes, path: tuple[Step, ...], rows: Mapping[Row, float], uses: Mapping[tuple[str, str], list[LinkUse]]
) -> None:
    """A line along the lower edge of rows, down or up to the next row where the path changes device."""
    hops: dict[int, list[LinkUse]] = defaultdict(list)
    for found in uses.values():
        for use in found:
            hops[id(use.transfer)].append(use)
    lines = []
    for step in path:
        if isinstance(step, ScheduledOp):
            lines.append((step.start_s, step.end_s, _edge(rows, step.device)))
        else:
            passed = sorted(hops[id(step)], key=lambda use: (use.part, use.start_s))
            lines += [(use.start_s, use.end_s, _edge(rows, use.hop)) for use in passed]
    flat = [[(start_s, y), (end_s, y)] for start_s, end_s, y in lines if end_s > start_s]
    steep = [
        [(after[0], before[2]), (after[0], after[2])] for before, after in pairwise(lines) if before[2] != after[2]
    ]
    ax.add_collection(
        LineCollection(flat, colors=CRITICAL, linewidths=2.2, zorder=3, label="critical path", capstyle="butt")
    )
    ax.add_collection(
        LineCollection(steep, colors=CRITICAL, linewidths=0.8, zorder=3, label="critical path changes row")
    )


def _edge(rows: Mapping[Row, float], row: Row) -> float:
    return rows[row] + _height(row) / 2


def _draw_kinds(ax: Axes, plan: Plan, rows: Mapping[Row, float], color_of: Callable[[str], str]) -> None:
    """The kinds of ops whose bars are wide enough for the text."""
    points_per_s = 72 * inches(ax)[0] / (plan.makespan_s or 1.0)
    for entry in _timed(plan):
        kind = plain(short_kind(plan.graph.op(entry.op).kind), 20)
        width_s = entry.end_s - entry.start_s
        if width_s * points_per_s < text_points(kind, _FONT_POINTS) + 2:
            continue
        lower = rows[entry.device] - _DEVICE_HEIGHT / 2
        box = Rectangle((entry.start_s, lower), width_s, _DEVICE_HEIGHT, transform=ax.transData)
        middle = (entry.start_s + entry.end_s) / 2
        ink = ink_on(color_of(entry.op))
        text = ax.text(
            middle, rows[entry.device], kind, size=_FONT_POINTS, color=ink, ha="center", va="center", clip_on=True
        )
        text.set_clip_path(box)


def _label(ax: Axes, plan: Plan, rows: Mapping[Row, float]) -> None:
    busy = busy_s(plan)
    names = [
        plain(row) + (f"\n{100 * busy[row] / plan.makespan_s:.0f} % busy" if plan.makespan_s else "")
        if isinstance(row, str)
        else f"{plain(row[0])} → {plain(row[1])}"
        for row in rows
    ]
    ax.set_yticks(list(rows.values()), names)
    for label, row in zip(ax.get_yticklabels(), rows, strict=True):
        label.set_fontsize(9 if isinstance(row, str) else 7)
        label.set_color(TEXT if isinstance(row, str) else GUIDE)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    label_seconds(ax.xaxis, plan.makespan_s, "time")
    ax.set_title(f"{plain(headline(plan), 100)}\n{verdict(plan)}", loc="left", fontsize=10)


def _timed(plan: Plan) -> Iterator[ScheduledOp]:
    return (entry for entry in plan.ops if entry.end_s > entry.start_s)
