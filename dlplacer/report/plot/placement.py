"""The graph of a model, collapsed along its module tree and coloured by device."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.report.module_blocks import outermost, short_names
from dlplacer.report.plot.style import CROSSING, GUIDE, IDLE, TEXT, axes_or_new, device_colors, entitle, inches, plain
from dlplacer.report.summary import headline, verdict

_LARGEST_SHARE = 1 / 40
_SLICES = 40
_BAND_GAP = 1.6
_COLUMN_INCHES = 0.22
_LANE_INCHES = 0.6
_LEAST_LANE_INCHES = 0.36
_LARGEST_POINTS2 = 400.0
_SMALLEST_POINTS2 = 3.0
_NAME_POINTS = 11.0
_OPAQUE_LINES = 150
_PASSES = {"forward": "forward →", "backward": "← backward", "optimizer": "← optimizer"}

Part = tuple[int, str, str]
"""What a block has of one phase on one device: (position of the block, phase, device)."""


@dataclass(frozen=True)
class CollapsedGraph:
    """The blocks of a plan's graph, in the order in which their forward ops follow each other.

    `groups`: [block] → the name of the module that it is a part of, the same for blocks side by side. `time_s`: part →
    the time of its ops. `moved_bytes`: (producing part, reading part) → the bytes that are sent between their devices,
    a tensor with several readers once for each.
    """

    groups: tuple[str, ...]
    time_s: Mapping[Part, float]
    moved_bytes: Mapping[tuple[Part, Part], int]

    @property
    def phases(self) -> list[str]:
        """The passes of the step."""
        found = {phase for _, phase, _ in self.time_s}
        return [phase for phase in _PASSES if phase in found]


def collapse(plan: Plan) -> CollapsedGraph:
    """The graph with every module that holds less than a fortieth of the ops as one block.

    Ops without module belong to the block of what they read; a graph without modules is cut into slices of its order,
    each named by its first op.
    """
    block, group = _blocks(plan)
    middle = _middles(plan, block)
    apart: dict[str, list[float]] = defaultdict(list)
    for name, position in middle.items():
        apart[group[name]].append(position)
    names = sorted(middle, key=lambda name: (median(apart[group[name]]), group[name], middle[name]))
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
    short = short_names(group[name] for name in names)
    return CollapsedGraph(tuple(short.get(group[name], "no module") for name in names), time_s, moved)


def _middles(plan: Plan, block: Mapping[str, str]) -> dict[str, float]:
    """Block → the middle of its forward ops that take time in the order of the graph, or of all that it has."""
    every, working = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for position, op_id in enumerate(plan.graph.topological_order):
        entry = plan.scheduled[op_id]
        every[block[op_id]].append(position)
        if plan.graph.op(op_id).phase in (None, "forward") and entry.end_s > entry.start_s:
            working[block[op_id]].append(position)
    return {name: median(working.get(name) or found) for name, found in every.items()}


def _blocks(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """Op → its block, the path of a module or a slice of the graph's order; and block → the module to name it by."""
    order = plan.graph.topological_order
    paths = {op.id: tuple(op.module.split(".")) for op in plan.graph.ops if op.module}
    if not paths:
        length = math.ceil(len(order) / _SLICES)
        slices = {op_id: order[position // length * length] for position, op_id in enumerate(order)}
        return slices, {name: name for name in slices.values()}
    block, whole = outermost(paths.values(), _LARGEST_SHARE * len(paths)), outermost(paths.values(), len(paths) / 2)
    found: dict[str, str] = {}
    for op_id in order:
        read = [found[edge.source] for edge in plan.graph.edges_into[op_id] if found[edge.source]]
        found[op_id] = ".".join(block(paths[op_id])) if op_id in paths else read[-1] if read else ""
    for op_id in reversed(order):
        readers = [found[edge.target] for edge in plan.graph.edges_from[op_id] if found[edge.target]]
        found[op_id] = found[op_id] or (readers[0] if readers else "")
    return found, {name: ".".join(whole(tuple(name.split(".")))) for name in found.values()}


def _size(plan: Plan, graph: CollapsedGraph) -> tuple[float, float]:
    """Inches, width and height, at which columns and lanes are apart."""
    lanes = len(graph.phases) * len(plan.topology.devices) + _BAND_GAP * len(graph.phases)
    lane_inches = max(_LEAST_LANE_INCHES, _LANE_INCHES * min(1.0, 8 / lanes))
    return min(26.0, max(9.0, 4.0 + _COLUMN_INCHES * len(graph.groups))), min(26.0, 2.2 + lane_inches * lanes)


def plot_placement(plan: Plan, ax: Axes | None = None) -> Axes:
    """The dataflow graph: a column per block of the module tree and, for each pass, a lane per device.

    The area of a dot grows with the time that the block spends there. Lines are what is sent between devices within a
    pass, the broader the more; faint ones lead from pass to pass. Returns the Axes; columns and lanes have no unit.
    """
    graph = collapse(plan)
    ax = axes_or_new(ax, _size(plan, graph))
    devices = [device.id for device in plan.topology.devices]
    top = {phase: -number * (len(devices) + _BAND_GAP) for number, phase in enumerate(graph.phases)}
    lane = {(phase, device): top[phase] - row for phase in graph.phases for row, device in enumerate(devices)}
    spots = {part: (float(part[0]), lane[part[1:]]) for part in graph.time_s}
    _draw_groups(ax, graph.groups)
    for y in lane.values():
        ax.axhline(y, color=GUIDE, linewidth=0.5, alpha=0.4, zorder=0.5)
    _draw_lines(ax, graph, spots)
    _draw_dots(ax, plan, graph, spots)
    for phase, y in top.items() if len(top) > 1 else ():
        ax.text(-0.5, y + 0.55, _PASSES[phase], fontsize=10, color=TEXT, va="bottom")
    ax.set_ylim(min(lane.values()) - 0.8, 1.6)
    ax.set_yticks(list(lane.values()), [plain(device) for _, device in lane], fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    entitle(ax, headline(plan), verdict(plan))
    beside = (1.005, 1.0)
    handles = _legend(plan, graph)
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=beside, frameon=False, fontsize=8, labelspacing=0.8)
    return ax


def _draw_groups(ax: Axes, groups: Iterable[str]) -> None:
    """Every other module on a grey ground, and names below as far as there is room for them."""
    runs = [(name, [at for at, _ in run]) for name, run in groupby(enumerate(groups), key=lambda pair: pair[1])]
    ax.set_xlim(-1, runs[-1][1][-1] + 1)
    for _, columns in runs[::2]:
        ax.axvspan(columns[0] - 0.5, columns[-1] + 0.5, color=IDLE, linewidth=0, zorder=0)
    least = _NAME_POINTS * (runs[-1][1][-1] + 2) / (72 * inches(ax)[0])
    named: dict[float, str] = {}
    for name, columns in runs:
        middle = (columns[0] + columns[-1]) / 2
        if middle >= max(named, default=-math.inf) + least:
            named[middle] = plain(name, 26)
    ax.set_xticks(list(named), list(named.values()), rotation=50, ha="right", fontsize=8)
    ax.tick_params(axis="x", length=2, pad=1)


def _draw_lines(ax: Axes, graph: CollapsedGraph, spots: Mapping[Part, tuple[float, float]]) -> None:
    most = max(graph.moved_bytes.values(), default=0) or 1
    within = {ends: size for ends, size in graph.moved_bytes.items() if ends[0][1] == ends[1][1]}
    between = [[spots[source], spots[target]] for source, target in graph.moved_bytes if source[1] != target[1]]
    faint = LineCollection(between, colors=GUIDE, linewidths=0.4, alpha=0.25, zorder=1, label="edges between passes")
    strong = LineCollection(
        [[spots[source], spots[target]] for source, target in within],
        linewidths=[0.3 + 2.2 * (size / most) ** 0.5 for size in within.values()],
        colors=CROSSING,
        # So many lines that they cover each other are drawn thinner than ink, or nothing else could be seen.
        alpha=max(0.06, 0.5 * min(1.0, _OPAQUE_LINES / max(1, len(within)))),
        zorder=2,
        label="edges between devices",
    )
    ax.add_collection(faint)
    ax.add_collection(strong)


def _draw_dots(ax: Axes, plan: Plan, graph: CollapsedGraph, spots: Mapping[Part, tuple[float, float]]) -> None:
    longest_s = max(graph.time_s.values()) or 1.0
    for device, color in device_colors(plan.topology.device_index).items():
        parts = [part for part, time_s in graph.time_s.items() if part[2] == device and time_s > 0]
        areas = [max(_SMALLEST_POINTS2, _LARGEST_POINTS2 * graph.time_s[part] / longest_s) for part in parts]
        x, y = [spots[part][0] for part in parts], [spots[part][1] for part in parts]
        ax.scatter(x, y, s=areas, color=color, edgecolors="white", linewidths=0.3, zorder=3, label=plain(device))


def _legend(plan: Plan, graph: CollapsedGraph) -> list[Line2D]:
    """Devices with their shares of ops and of the time; the meaning of lines and areas; transfers."""
    count, total_s = Counter(plan.placement.values()), sum(plan.busy_s.values())
    handles = []
    for device, color in device_colors(plan.topology.device_index).items():
        share = f"{100 * plan.busy_s[device] / total_s:.0f} % of the time" if total_s else "no time"
        label = f"{plain(device)}: {count[device]} ops, {share}"
        handles.append(Line2D([], [], marker="o", linestyle="", markersize=8, color=color, label=label))
    moved = sum(transfer.bytes for transfer in plan.transfers)
    texts = (
        f"{len(plan.transfers)} transfers, {format_bytes(moved)}",
        f"area: time, at most {format_seconds(max(graph.time_s.values()))}",
        f"{len(plan.ops)} ops in {len(graph.groups)} blocks",
    )
    return [
        *handles,
        Line2D([], [], color=CROSSING, linewidth=1.6, label="sent between devices"),
        Line2D([], [], color=GUIDE, linewidth=0.6, alpha=0.5, label="faint: from one pass to the next"),
        *(Line2D([], [], linestyle="", label=text) for text in texts),
    ]
