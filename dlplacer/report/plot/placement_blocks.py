"""The graph of a large model, collapsed along its module tree."""

import math
from collections import Counter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.report.page.summary import busy_s
from dlplacer.report.plot.positions.module_tree import CollapsedGraph, Part, collapse
from dlplacer.report.plot.style.axes import inches, plain
from dlplacer.report.plot.style.colors import CROSSING, GUIDE, IDLE, TEXT, device_colors

_BAND_GAP = 1.6
_COLUMN_INCHES = 0.22
_LANE_INCHES = 0.36
_LARGEST_POINTS2 = 240.0
_SMALLEST_POINTS2 = 3.0
_NAME_POINTS = 11.0
_OPAQUE_LINES = 150
_PASSES = {"forward": "forward →", "backward": "← backward", "optimizer": "← optimizer"}


def blocks_size(plan: Plan) -> tuple[float, float]:
    """Inches, width and height, at which the columns and lanes of `draw_blocks` are apart."""
    graph = collapse(plan)
    lanes = len(_phases(graph)) * len(plan.topology.devices)
    return min(26.0, max(9.0, 4.0 + _COLUMN_INCHES * len(graph.names))), min(26.0, 2.6 + _LANE_INCHES * (lanes + 2))


def draw_blocks(ax: Axes, plan: Plan) -> None:
    """A column per block of the module tree and, for each pass, a lane per device; dots grow with the time spent there.

    Lines are what is sent between devices within a pass, the broader the more; faint ones lead from pass to pass.
    """
    graph = collapse(plan)
    phases, devices = _phases(graph), [device.id for device in plan.topology.devices]
    top = {phase: -number * (len(devices) + _BAND_GAP) for number, phase in enumerate(phases)}
    lane = {(phase, device): top[phase] - row for phase in phases for row, device in enumerate(devices)}
    for y in lane.values():
        ax.axhline(y, color=IDLE, linewidth=5, zorder=0)
    spots = {part: (float(part[0]), lane[part[1:]]) for part in graph.time_s}
    _draw_lines(ax, graph, spots)
    _draw_dots(ax, plan, graph, spots)
    for phase, y in top.items() if len(phases) > 1 else ():
        ax.text(-0.5, y + 0.55, _PASSES.get(phase, phase), fontsize=10, color=TEXT, va="bottom")
    ax.set_xlim(-1, len(graph.names))
    ax.set_ylim(min(lane.values()) - 0.8, 1.6)
    ax.set_yticks(list(lane.values()), [plain(device) for _, device in lane], fontsize=8)
    ax.tick_params(axis="y", length=0)
    fitting = max(1, math.ceil(len(graph.names) * _NAME_POINTS / (72 * inches(ax)[0])))
    named = range(0, len(graph.names), fitting)
    ax.set_xticks(list(named), [plain(graph.names[at], 26) for at in named], rotation=50, ha="right", fontsize=8)
    ax.tick_params(axis="x", length=2, pad=1)


def blocks_legend(plan: Plan) -> list[Line2D]:
    """What the picture shows, in words and figures."""
    colors, busy = device_colors(plan.topology.device_index), busy_s(plan)
    count = Counter(plan.placement.values())
    total_s = sum(busy.values()) or 1.0
    handles = []
    for device, color in colors.items():
        label = f"{plain(device)}: {count[device]} ops, {100 * busy[device] / total_s:.0f} % of the time"
        handles.append(Line2D([], [], marker="o", linestyle="", markersize=8, color=color, label=label))
    graph = collapse(plan)
    moved = sum(transfer.bytes for transfer in plan.transfers)
    longest_s = max(graph.time_s.values())
    handles += [
        Line2D([], [], color=CROSSING, linewidth=1.6, label="sent between devices"),
        Line2D([], [], color=GUIDE, linewidth=0.6, alpha=0.5, label="faint: from one pass to the next"),
        Line2D([], [], linestyle="", label=f"{len(plan.transfers)} transfers, {format_bytes(moved)}"),
        Line2D([], [], linestyle="", label=f"area: time, at most {format_seconds(longest_s)}"),
        Line2D([], [], linestyle="", label=f"{len(plan.ops)} ops in {len(graph.names)} blocks"),
    ]
    return handles


def _phases(graph: CollapsedGraph) -> list[str]:
    found = {phase for _, phase, _ in graph.time_s}
    return [phase for phase in _PASSES if phase in found]


def _draw_lines(ax: Axes, graph: CollapsedGraph, spots: dict[Part, tuple[float, float]]) -> None:
    most = max(graph.moved_bytes.values(), default=0) or 1
    within, between, widths = [], [], []
    for (source, target), size in graph.moved_bytes.items():
        line = [spots[source], spots[target]]
        if source[1] == target[1]:
            within.append(line)
            widths.append(0.3 + 2.2 * (size / most) ** 0.5)
        else:
            between.append(line)
    faint = LineCollection(between, colors=GUIDE, linewidths=0.4, alpha=0.25, zorder=1, label="edges between passes")
    # So many lines that they cover each other are drawn thinner than ink, or nothing else could be seen.
    opacity = max(0.06, 0.5 * min(1.0, _OPAQUE_LINES / max(1, len(within))))
    style: dict[str, Any] = {"colors": CROSSING, "alpha": opacity, "zorder": 2, "label": "edges between devices"}
    strong = LineCollection(within, linewidths=widths, **style)
    ax.add_collection(faint)
    ax.add_collection(strong)


def _draw_dots(ax: Axes, plan: Plan, graph: CollapsedGraph, spots: dict[Part, tuple[float, float]]) -> None:
    longest_s = max(graph.time_s.values()) or 1.0
    for device, color in device_colors(plan.topology.device_index).items():
        parts = [part for part, time_s in graph.time_s.items() if part[2] == device and time_s > 0]
        areas = [max(_SMALLEST_POINTS2, _LARGEST_POINTS2 * graph.time_s[part] / longest_s) for part in parts]
        x, y = [spots[part][0] for part in parts], [spots[part][1] for part in parts]
        ax.scatter(x, y, s=areas, color=color, edgecolors="white", linewidths=0.3, zorder=3, label=plain(device))
