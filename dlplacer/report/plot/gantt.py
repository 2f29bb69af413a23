"""Gantt charts of devices and links: of a plan, and of a run below its prediction."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.units import format_seconds
from dlplacer.report.critical_path import PathPart, critical_path
from dlplacer.report.link_use import LinkUse, link_uses
from dlplacer.report.module_blocks import blocks_of, short_kind, short_names
from dlplacer.report.plot.style import (
    CRITICAL,
    GUIDE,
    IDLE,
    PHASE,
    TEXT,
    TRANSFER,
    axes_or_new,
    block_colors,
    entitle,
    inches,
    ink_on,
    label_rows,
    label_seconds,
    plain,
    text_points,
)
from dlplacer.report.summary import headline, verdict

_MOST_ROWS = 10


Row = str | tuple[str, ...]
"""A row: a device; the nodes of a route; or a tuple of one device, for the transfers that arrive there."""


def link_rows(plan: Plan) -> Mapping[tuple[str, ...], Sequence[LinkUse]]:
    """A row per route of links used together; if there are many routes, a row per device for its arriving transfers."""
    uses = link_uses(plan)
    together: dict[tuple[Any, ...], list[tuple[str, str]]] = defaultdict(list)
    for hop, found in uses.items():
        together[tuple((id(use.transfer), use.part, use.start_s, use.end_s) for use in found)].append(hop)
    if len(together) <= _MOST_ROWS:
        return {_route(hops, uses[hops[0]][0]): uses[hops[0]] for hops in together.values()}
    arriving: dict[tuple[str, ...], list[LinkUse]] = {(device.id,): [] for device in plan.topology.devices}
    for (_, target), passed in uses.items():
        arriving.get((target,), []).extend(passed)
    return {row: sorted(here, key=lambda use: use.start_s) for row, here in arriving.items() if here}


def _route(hops: list[tuple[str, str]], use: LinkUse) -> tuple[str, ...]:
    first, *others = sorted(hops, key=use.transfer.segments[use.part].route.index)
    nodes = [*first]
    for source, target in others:
        nodes += [target] if nodes[-1] == source else ["…", source, target]
    return tuple(nodes)


_DEVICE_HEIGHT = 0.8
_LINK_HEIGHT = 0.3
_LINK_STEP = 0.42
_ARRIVING_HEIGHT = 0.16
_ARRIVING_STEP = 0.28
_CHANGE_OPACITY = 0.35
_OUTLINED_POINTS = 4
_FONT_POINTS = 7
_LEGEND_INCHES = 0.17
_TITLE_AND_AXIS_INCHES = 1.4
_ROW_INCHES = 0.72


def gantt_size(plan: Plan) -> tuple[float, float]:
    """Width and height in inches that show all rows, with one height for all device rows."""
    lowest, highest = _limits(_rows(plan, link_rows(plan)))
    return 16.0, min(40.0, _TITLE_AND_AXIS_INCHES + _ROW_INCHES * (lowest - highest))


def plot_gantt(
    plan: Plan, ax: Axes | None = None, color_by: str = "phase", mark_path: bool = True, until_s: float | None = None
) -> Axes:
    """A Gantt chart with a row per device and per used route of links; returns the Axes, with time in seconds.

    Ops that take no time are not drawn. The line below the bars is the critical path (`mark_path`); faint lines lead
    from row to row. If many routes are used, a narrow row below each device shows all transfers that arrive there.
    `color_by` is ``phase``, or ``module`` for the blocks of the model.
    """
    color_of, legend = _colors(plan, color_by)
    ax = axes_or_new(ax, gantt_size(plan))
    path = critical_path(plan) if mark_path else ()
    below = link_rows(plan)
    rows = _rows(plan, below)
    ax.set_xlim(0, until_s or plan.makespan_s or 1.0)
    ax.set_ylim(*_limits(rows))
    for row, middle in rows.items():
        corner = (0, middle - _height(row) / 2)
        ax.add_patch(Rectangle(corner, plan.makespan_s, _height(row), facecolor=IDLE, edgecolor="none", zorder=0.5))
    _draw_ops(ax, plan, rows, color_of)
    for row, uses in below.items():
        spans = [(use.start_s, use.end_s - use.start_s) for use in uses]
        place = (rows[row] - _height(row) / 2, _height(row))
        edge: dict[str, Any] = {"edgecolors": TRANSFER, "linewidths": 0.2}
        ax.broken_barh(spans, place, facecolors=TRANSFER, alpha=0.6, label="transfers", **edge)
    _draw_critical_path(ax, path, rows, below)
    _draw_kinds(ax, plan, rows, color_of)
    _label(ax, plan, rows)
    arriving = any(len(row) == 1 for row in below)
    several = " (darker: several)" if plan.options.contention == "none" or arriving else ""
    legend += [Patch(color=TRANSFER, label=f"transfer{several}")] if below else []
    legend += [Patch(color=IDLE, label="idle")]
    legend += [Line2D([], [], color=CRITICAL, linewidth=2, label="critical path")] if mark_path else []
    if plan.lower_bound_s and plan.objective.is_makespan:
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


def _limits(rows: Mapping[Row, float]) -> tuple[float, float]:
    """The lower and upper ends of the y axis."""
    return max(rows.values()) + 0.5, -0.6


def _rows(plan: Plan, below: Iterable[tuple[str, ...]]) -> dict[Row, float]:
    """Row → y of its middle: devices above links, or each device above its arriving transfers."""
    arriving = {*below}
    if not arriving or len(next(iter(arriving))) > 1:
        rows: dict[Row, float] = {device.id: float(position) for position, device in enumerate(plan.topology.devices)}
        first = len(rows) - 0.2
        return rows | {row: first + _LINK_STEP * position for position, row in enumerate(below)}
    rows, middle = {}, 0.0
    for device in plan.topology.devices:
        rows[device.id] = middle
        middle += 1.0
        if (device.id,) in arriving:
            rows[device.id,] = middle - 1 + (_DEVICE_HEIGHT + _ARRIVING_STEP) / 2
            middle += _ARRIVING_STEP
    return rows


def _height(row: Row) -> float:
    if isinstance(row, str):
        return _DEVICE_HEIGHT
    return _ARRIVING_HEIGHT if len(row) == 1 else _LINK_HEIGHT


def _draw_ops(ax: Axes, plan: Plan, rows: Mapping[Row, float], color_of: Callable[[str], str]) -> None:
    """Draw ops as bars; only wide ones get a white outline, which on narrow ones would look like idle time."""
    outlined_s = _OUTLINED_POINTS / _points_per_s(ax)
    bars: dict[tuple[str, str, bool], list[tuple[float, float]]] = defaultdict(list)
    for entry in _timed(plan):
        width_s = entry.end_s - entry.start_s
        bars[entry.device, color_of(entry.op), width_s > outlined_s].append((entry.start_s, width_s))
    for (device, color, outlined), spans in bars.items():
        edge = "white" if outlined else color
        place = (rows[device] - _DEVICE_HEIGHT / 2, _DEVICE_HEIGHT)
        ax.broken_barh(spans, place, facecolors=color, edgecolors=edge, linewidths=0.3, label=f"ops on {device}")


def _draw_critical_path(
    ax: Axes, path: tuple[PathPart, ...], rows: Mapping[Row, float], below: Mapping[tuple[str, ...], Sequence[LinkUse]]
) -> None:
    """Draw a line along the lower edge of rows, and a faint line to the next row if the path changes rows."""
    passed: dict[int, list[tuple[LinkUse, Row]]] = defaultdict(list)
    for row, uses in below.items():
        for use in uses:
            passed[id(use.transfer)].append((use, row))
    lines = []
    for part in path:
        if isinstance(part.step, ScheduledOp):
            lines.append((part.begin_s, part.end_s, _edge(rows, part.step.device)))
        else:
            hops = sorted(passed[id(part.step)], key=lambda found: (found[0].part, found[0].start_s))
            spans = [(max(use.start_s, part.begin_s), min(use.end_s, part.end_s), row) for use, row in hops]
            lines += [(start_s, end_s, _edge(rows, row)) for start_s, end_s, row in spans if end_s > start_s]
    flat = [[(start_s, y), (end_s, y)] for start_s, end_s, y in lines if end_s > start_s]
    changes = ((before[2], after) for before, after in pairwise(lines) if before[2] != after[2])
    steep = [[(start_s, y), (start_s, below_y)] for y, (start_s, _, below_y) in changes]
    look: dict[str, Any] = {"colors": CRITICAL, "zorder": 3, "label": "critical path"}
    ax.add_collection(LineCollection(flat, linewidths=2.2, capstyle="butt", **look))
    look |= {"linewidths": 0.8, "alpha": _CHANGE_OPACITY, "label": "critical path changes row"}
    ax.add_collection(LineCollection(steep, **look))


def _edge(rows: Mapping[Row, float], row: Row) -> float:
    return rows[row] + _height(row) / 2


def _draw_kinds(ax: Axes, plan: Plan, rows: Mapping[Row, float], color_of: Callable[[str], str]) -> None:
    """Write the kinds of ops on bars that are wide enough."""
    points_per_s = _points_per_s(ax)
    for entry in _timed(plan):
        kind = plain(short_kind(plan.graph.op(entry.op).kind), 20)
        width_s = entry.end_s - entry.start_s
        if width_s * points_per_s < text_points(kind, _FONT_POINTS) + 2:
            continue
        lower = rows[entry.device] - _DEVICE_HEIGHT / 2
        box = Rectangle((entry.start_s, lower), width_s, _DEVICE_HEIGHT, transform=ax.transData)
        look: dict[str, Any] = {"size": _FONT_POINTS, "color": ink_on(color_of(entry.op)), "clip_on": True}
        middle = ((entry.start_s + entry.end_s) / 2, rows[entry.device])
        ax.text(*middle, kind, ha="center", va="center", **look).set_clip_path(box)


def _points_per_s(ax: Axes) -> float:
    start_s, end_s = ax.get_xlim()
    return 72 * inches(ax)[0] / (end_s - start_s)


def _label(ax: Axes, plan: Plan, rows: Mapping[Row, float]) -> None:
    label_rows(ax, list(rows.values()), [_name(row, plan.busy_s, plan.makespan_s) for row in rows])
    for label, row in zip(ax.get_yticklabels(), rows, strict=True):
        label.set_fontsize(9 if isinstance(row, str) else 6 if len(row) == 1 else 7)
        label.set_color(TEXT if isinstance(row, str) else GUIDE)
    label_seconds(ax.xaxis, ax.get_xlim()[1], "time")
    entitle(ax, headline(plan), verdict(plan))


def _name(row: Row, busy: Mapping[str, float], makespan_s: float) -> str:
    if isinstance(row, str):
        return plain(row) + (f"\n{100 * busy[row] / makespan_s:.0f} % busy" if makespan_s else "")
    return " → ".join(map(plain, row if len(row) > 1 else ("", *row))).strip()


def _timed(plan: Plan) -> Iterator[ScheduledOp]:
    return (entry for entry in plan.ops if entry.end_s > entry.start_s)


_SPAN = "from the start of the first op to the end of the last, without the host's work before and after"


def plot_run(steps: tuple[Plan, Plan], axes: tuple[Axes, Axes] | None = None) -> tuple[Axes, Axes]:
    """Gantt charts of the predicted and the measured step with the same time axis; returns their Axes.

    A recorded step has no transfers. Neither chart shows a critical path, because cores also spend time on handing over
    tensors, which no bar represents.
    """
    (width, above), (_, below) = map(gantt_size, steps)
    both: Any = axes_or_new(axes, (width, above + below), 2)
    longest_s = max(plan.makespan_s for plan in steps)
    for plan, ax, name in zip(steps, both, ("predicted", "measured"), strict=True):
        plot_gantt(plan, ax, mark_path=False, until_s=longest_s)
        percent = 100 * (plan.makespan_s / steps[0].makespan_s - 1) if steps[0].makespan_s else 0.0
        apart = f", {abs(percent):.1f} % {'longer' if percent > 0 else 'shorter'} than predicted" if percent else ""
        ax.set_title(f"{name}: {format_seconds(plan.makespan_s)}{apart}", loc="left", fontweight="bold")
    both[0].annotate(_SPAN, (1, 1), (0, 4), "axes fraction", "offset points", fontsize=7, color=GUIDE, ha="right")
    return both[0], both[1]
