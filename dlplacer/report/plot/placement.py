"""The graph of a model, coloured by device."""

import math
from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from dlplacer.core.plan import Plan
from dlplacer.report.module_blocks import blocks_of, short_names
from dlplacer.report.plot.op_positions import OpPositions, lay_out
from dlplacer.report.plot.placement_blocks import blocks_legend, blocks_size, draw_blocks, legend
from dlplacer.report.plot.style import CROSSING, GUIDE, IDLE, TEXT, axes_or_new, device_colors, entitle, inches, plain
from dlplacer.report.summary import headline, verdict

_SMALLEST_POINTS2 = 10.0
_LARGEST_POINTS2 = 700.0
_OF_COLUMN = 0.8
_NAME_POINTS = 13.0
_NAMES_SHOWN = 2
_MOST_OPS = 1500


@dataclass(frozen=True, slots=True)
class _Band:
    """Columns that belong to a block of the model."""

    names: tuple[str, ...]
    left: float
    right: float


def placement_size(plan: Plan) -> tuple[float, float]:
    """Inches, width and height, at which the columns and rows of `plot_placement` are apart."""
    if _is_large(plan):
        return blocks_size(plan)
    layout = lay_out(plan)
    columns = max(layout.x.values()) - min(layout.x.values())
    rows = max(layout.y.values()) - min(layout.y.values())
    return min(26.0, max(9.0, 3.0 + 0.115 * columns)), min(20.0, max(5.0, 2.8 + 0.5 * rows))


def plot_placement(plan: Plan, ax: Axes | None = None) -> Axes:
    """The dataflow graph, every op in the colour of its device and with an area that grows with its time.

    The forward pass runs from left to right above the middle, the backward pass back below it. Ops that take no time
    (parameters, buffers, inputs, views) are left out and edges pass through them. Edges between devices stand out. A
    graph of more than 1,500 other ops is collapsed along its module tree (`draw_blocks`). Returns the Axes; columns
    and rows have no unit.
    """
    ax = axes_or_new(ax, placement_size(plan))
    if _is_large(plan):
        draw_blocks(ax, plan)
        handles = blocks_legend(plan)
    else:
        handles = _draw_every_op(ax, plan)
        ax.set_yticks([])
    ax.spines[["top", "right", "left"]].set_visible(False)
    entitle(ax, headline(plan), verdict(plan))
    beside = (1.005, 1.0)
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=beside, frameon=False, fontsize=8, labelspacing=0.8)
    return ax


def _is_large(plan: Plan) -> bool:
    return sum(entry.end_s > entry.start_s for entry in plan.ops) > _MOST_OPS


def _draw_every_op(ax: Axes, plan: Plan) -> list[Line2D]:
    layout = lay_out(plan)
    _draw_bands(ax, plan, layout)
    crossing = _draw_edges(ax, plan, layout)
    _draw_ops(ax, plan, layout)
    _label_phases(ax, plan, layout)
    ax.set_xlim(min(layout.x.values()) - 2, max(layout.x.values()) + 2)
    ax.set_ylim(min(layout.y.values()) - 1, max(layout.y.values()) + 1)
    return _legend(plan, layout, crossing)


def _draw_bands(ax: Axes, plan: Plan, layout: OpPositions) -> None:
    bands = _bands(plan, layout)
    for band in bands[::2]:
        ax.axvspan(band.left - 0.5, band.right + 0.5, color=IDLE, zorder=0, linewidth=0)
    gap = _NAME_POINTS * (max(layout.x.values()) - min(layout.x.values()) + 4) / (72 * inches(ax)[0])
    places: list[float] = []
    for band in bands:
        places.append(max((band.left + band.right) / 2, places[-1] + gap if places else -math.inf))
    ax.set_xticks(places, [_joined(band.names) for band in bands], rotation=50, ha="right", fontsize=8)
    ax.tick_params(axis="x", length=0, pad=1)


def _bands(plan: Plan, layout: OpPositions) -> list[_Band]:
    """The blocks of the model from left to right; those that share most of their columns make one band."""
    blocks = blocks_of(plan)
    names = short_names(blocks.values())
    columns: dict[str, list[float]] = {}
    for op_id, column in layout.x.items():
        if blocks[op_id] and layout.y[op_id] > 0:
            columns.setdefault(names[blocks[op_id]], []).append(column)
    bands: list[_Band] = []
    for name, found in sorted(columns.items(), key=lambda item: (min(item[1]), max(item[1]))):
        band = _Band((name,), min(found), max(found))
        if bands and _overlap(bands[-1], band):
            before = bands.pop()
            band = _Band((*before.names, name), before.left, max(before.right, band.right))
        bands.append(band)
    return bands


def _overlap(one: _Band, other: _Band) -> bool:
    shared = min(one.right, other.right) - max(one.left, other.left) + 1
    return shared > 0.5 * (min(one.right - one.left, other.right - other.left) + 1)


def _joined(names: tuple[str, ...]) -> str:
    more = f" + {len(names) - _NAMES_SHOWN}" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(plain(name, 22) for name in names[:_NAMES_SHOWN]) + more


def _draw_edges(ax: Axes, plan: Plan, layout: OpPositions) -> int:
    """Edges, from pass to pass faintly, between devices last; returns the number between devices."""
    lines: dict[tuple[bool, bool], list[list[tuple[float, float]]]] = {}
    for source, target in layout.edges:
        crossing = plan.placement[source] != plan.placement[target]
        between_passes = _phase(plan, source) != _phase(plan, target)
        lines.setdefault((crossing, between_passes), []).append(_line(plan, layout, source, target))
    for (crossing, between_passes), found in sorted(lines.items()):
        ax.add_collection(
            LineCollection(
                found,
                colors=CROSSING if crossing else GUIDE,
                linewidths=0.4 if between_passes else 0.9 if crossing else 0.6,
                alpha=0.22 if between_passes else 0.75,
                zorder=1.5 if crossing else 1,
                label="edges between devices" if crossing else "edges",
            )
        )
    return sum(len(found) for (crossing, _), found in lines.items() if crossing)


def _line(plan: Plan, layout: OpPositions, source: str, target: str) -> list[tuple[float, float]]:
    """Straight from pass to pass; else along the row of the branch, which holds no other op."""
    start, end = (layout.x[source], layout.y[source]), (layout.x[target], layout.y[target])
    if _phase(plan, source) == _phase(plan, target) == "forward" and end[0] > start[0] + 1:
        return [start, (end[0] - 1, start[1]), end]
    if _phase(plan, source) == _phase(plan, target) and end[0] < start[0] - 1:
        return [start, (start[0] - 1, end[1]), end]
    return [start, end]


def _draw_ops(ax: Axes, plan: Plan, layout: OpPositions) -> None:
    """Large ops first, so that small ones stay visible."""
    colors = device_colors(plan.topology.device_index)
    times_s = [_time_s(plan, op_id) for op_id in layout.x]
    largest = _largest_points2(ax, layout, times_s)
    for device, color in colors.items():
        ops = [op_id for op_id in layout.x if plan.placement[op_id] == device]
        ops.sort(key=lambda op_id: -_time_s(plan, op_id))
        areas = [_area(_time_s(plan, op_id), max(times_s), largest) for op_id in ops]
        ax.scatter(
            [layout.x[op_id] for op_id in ops],
            [layout.y[op_id] for op_id in ops],
            s=areas,
            color=color,
            edgecolors="white",
            linewidths=0.3,
            zorder=3,
            label=plain(device),
        )


def _largest_points2(ax: Axes, layout: OpPositions, times_s: list[float]) -> float:
    """The area of the longest op: so that a usual one is narrower than its column, where most are about as long."""
    column_points = _OF_COLUMN * 72 * inches(ax)[0] / (max(layout.x.values()) - min(layout.x.values()) + 4)
    usual_s = median(times_s)
    return min(_LARGEST_POINTS2, column_points**2 * max(times_s) / usual_s) if usual_s else _LARGEST_POINTS2


def _area(time_s: float, longest_s: float, largest: float) -> float:
    return max(_SMALLEST_POINTS2, largest * time_s / longest_s) if longest_s else 20.0


def _label_phases(ax: Axes, plan: Plan, layout: OpPositions) -> None:
    """The name of each pass at its outer edge, if there are several."""
    heights: dict[str, list[float]] = {}
    for op_id, y in layout.y.items():
        heights.setdefault(_phase(plan, op_id), []).append(y)
    for phase, found in heights.items() if len(heights) > 1 else ():
        text, y, align = {"forward": ("forward →", max(found), "top")}.get(phase, (f"← {phase}", min(found), "bottom"))
        ax.text(0.003, y, text, transform=ax.get_yaxis_transform(), fontsize=10, color=TEXT, va=align)


def _phase(plan: Plan, op_id: str) -> str:
    return plan.graph.op(op_id).phase or "forward"


def _time_s(plan: Plan, op_id: str) -> float:
    entry = plan.scheduled[op_id]
    return entry.end_s - entry.start_s


def _legend(plan: Plan, layout: OpPositions, crossing: int) -> list[Line2D]:
    lines = [
        Line2D([], [], color=GUIDE, linewidth=0.8, label=f"edge ({len(layout.edges) - crossing})"),
        Line2D([], [], color=CROSSING, linewidth=1.2, label=f"edge between devices ({crossing})"),
        Line2D([], [], color=GUIDE, linewidth=0.6, alpha=0.4, label="faint: from one pass to the next"),
    ]
    hidden = len(plan.ops) - len(layout.x)
    last = f"not shown: {hidden} ops (parameters, …)" if hidden else ""
    return legend(plan, layout.x, lines, max(_time_s(plan, op_id) for op_id in layout.x), last)
