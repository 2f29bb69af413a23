"""The graph of a large model, collapsed along its module tree."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.report.module_blocks import outermost, short_names
from dlplacer.report.plot.style import CROSSING, GUIDE, IDLE, TEXT, device_colors, inches, plain

_LARGEST_SHARE = 1 / 40
_SLICES = 40

Part = tuple[int, str, str]
"""What a block has of one phase on one device: (position of the block, phase, device)."""


@dataclass(frozen=True)
class CollapsedGraph:
    """The blocks of a plan's graph, in the order in which their forward ops follow each other.

    `time_s`: part → the time of its ops. `moved_bytes`: (producing part, reading part) → the bytes that are sent
    between their devices, a tensor with several readers once for each.
    """

    names: tuple[str, ...]
    time_s: Mapping[Part, float]
    moved_bytes: Mapping[tuple[Part, Part], int]


def collapse(plan: Plan) -> CollapsedGraph:
    """The graph with every module that holds less than a fortieth of the ops as one block.

    Ops without module belong to the block of what they read; a graph without modules is cut into slices of its order.
    """
    block = _blocks(plan)
    names = _by_forward_order(plan, block)
    place = {name: position for position, name in enumerate(names)}
    time_s: dict[Part, float] = defaultdict(float)
    part: dict[str, Part] = {}
    for entry in plan.ops:
        part[entry.op] = (place[block[entry.op]], plan.graph.op(entry.op).phase or "forward", entry.device)
        time_s[part[entry.op]] += entry.end_s - entry.start_s
    moved: Counter[tuple[Part, Part]] = Counter()
    for edge in plan.graph.edges:
        source, target = part[edge.source], part[edge.target]
        if source[2] != target[2]:
            moved[source, target] += edge.bytes
    return CollapsedGraph(tuple(_shown_names(names)), time_s, moved)


def _by_forward_order(plan: Plan, block: Mapping[str, str]) -> list[str]:
    """The blocks by the middle of their forward ops that take time; those without such ops by all they have."""
    working: dict[str, list[int]] = defaultdict(list)
    every: dict[str, list[int]] = defaultdict(list)
    for position, op_id in enumerate(plan.graph.topological_order):
        entry = plan.scheduled[op_id]
        every[block[op_id]].append(position)
        if plan.graph.op(op_id).phase in (None, "forward") and entry.end_s > entry.start_s:
            working[block[op_id]].append(position)
    return sorted(every, key=lambda name: median(working.get(name) or every[name]))


def _shown_names(names: Iterable[str]) -> list[str]:
    listed = list(names)
    short = short_names(listed)
    return [short.get(name, "no module") for name in listed]


def _blocks(plan: Plan) -> dict[str, str]:
    """Op → its block: the path of a module, or a slice of the graph's order."""
    order = plan.graph.topological_order
    paths = {op.id: tuple(op.module.split(".")) for op in plan.graph.ops if op.module}
    if not paths:
        length = math.ceil(len(order) / _SLICES)
        begin = {op_id: position // length * length for position, op_id in enumerate(order)}
        return {op_id: f"op {first}–{min(first + length, len(order)) - 1}" for op_id, first in begin.items()}
    block = outermost(paths.values(), _LARGEST_SHARE * len(paths))
    found: dict[str, str] = {}
    for op_id in order:
        path = paths.get(op_id)
        if path is not None:
            found[op_id] = ".".join(block(path))
            continue
        read = [found[edge.source] for edge in plan.graph.edges_into[op_id] if found[edge.source]]
        found[op_id] = read[-1] if read else ""
    for op_id in reversed(order):
        readers = [found[edge.target] for edge in plan.graph.edges_from[op_id] if found[edge.target]]
        found[op_id] = found[op_id] or (readers[0] if readers else "")
    return found


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
    """The legend of the picture, in words and figures."""
    graph = collapse(plan)
    lines = [
        Line2D([], [], color=CROSSING, linewidth=1.6, label="sent between devices"),
        Line2D([], [], color=GUIDE, linewidth=0.6, alpha=0.5, label="faint: from one pass to the next"),
    ]
    last = f"{len(plan.ops)} ops in {len(graph.names)} blocks"
    return legend(plan, plan.placement, lines, max(graph.time_s.values()), last)


def legend(plan: Plan, shown: Iterable[str], lines: list[Line2D], longest_s: float, last: str = "") -> list[Line2D]:
    """Devices with their shares of the shown ops and of the time; the meaning of lines and areas; transfers."""
    colors, busy = device_colors(plan.topology.device_index), plan.busy_s
    count, total_s = Counter(plan.placement[op_id] for op_id in shown), sum(busy.values())
    handles = []
    for device, color in colors.items():
        share = f"{100 * busy[device] / total_s:.0f} % of the time" if total_s else "no time"
        label = f"{plain(device)}: {count[device]} ops, {share}"
        handles.append(Line2D([], [], marker="o", linestyle="", markersize=8, color=color, label=label))
    moved = sum(transfer.bytes for transfer in plan.transfers)
    texts = [
        f"{len(plan.transfers)} transfers, {format_bytes(moved)}",
        f"area: time, at most {format_seconds(longest_s)}",
    ]
    texts += [last] if last else []
    return [*handles, *lines, *(Line2D([], [], linestyle="", label=text) for text in texts)]


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
