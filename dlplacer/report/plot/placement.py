"""The graph of a model, coloured by device: op by op, or collapsed along its module tree if it is large."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from statistics import median

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.report.module_blocks import blocks_of, outermost, short_names
from dlplacer.report.plot.style import CROSSING, GUIDE, IDLE, TEXT, axes_or_new, device_colors, entitle, inches, plain
from dlplacer.report.summary import headline, verdict

_MOST_OPS = 1500
"""Most ops with a duration that are drawn one by one."""
_LARGEST_SHARE = 1 / 40
_SLICES = 40
_BAND_GAP = 1.6
_STACKED = 0.3
_COLUMN_INCHES = 0.22
_LANE_INCHES = 0.6
_LEAST_LANE_INCHES = 0.36
_LARGEST_POINTS2 = 400.0
_SMALLEST_POINTS2 = 3.0
_NAME_POINTS = 11.0
_OPAQUE_LINES = 150
_PASSES = {"forward": "forward →", "backward": "← backward", "optimizer": "← optimizer"}

Part = tuple[str, str, str]
"""An op or a block of the module tree, a phase and a device: the block's ops of that phase on that device."""


@dataclass(frozen=True)
class GraphLayout:
    """The positions, durations and edges of the parts of a picture; each part is a dot.

    `spots`: part → column and row. `groups`: [column] → the name of the module there. `moved_bytes`: (producing part,
    reading part) → the bytes that the reader takes. `lanes`: phase and device → row; empty unless each device has a row
    of its own.
    """

    spots: Mapping[Part, tuple[float, float]]
    groups: tuple[str, ...]
    time_s: Mapping[Part, float]
    moved_bytes: Mapping[tuple[Part, Part], int]
    lanes: Mapping[tuple[str, str], float]


def lay_out(plan: Plan) -> GraphLayout:
    """Lay out ops by depth (column) and branch (row), or the blocks of a large graph in a lane per device."""
    working = {entry.op for entry in plan.ops if entry.end_s > entry.start_s} or {entry.op for entry in plan.ops}
    if len(working) <= _MOST_OPS:
        return _by_branches(plan, working)
    return _by_lanes(plan)


def _by_branches(plan: Plan, shown: set[str]) -> GraphLayout:
    """The layout of the `shown` ops; edges pass through other ops."""
    graph, order = plan.graph, plan.graph.topological_order
    read: dict[str, dict[str, int]] = {}
    for name in order:
        read[name] = {}
        for edge in graph.edges_into[name]:
            ends = [edge.source] if edge.source in shown else read[edge.source]
            read[name] |= {end: max(edge.bytes, read[name].get(end, 0)) for end in ends}
    ahead = [name for name in order if name in shown and graph.op(name).phase in (None, "forward")]
    column, row = _columns_and_rows(ahead, read)
    at = {name: (float(column[name]), _BAND_GAP / 2 + row[name]) for name in column}
    alone = [name for name in ahead if name not in column]
    at |= {name: (x, _BAND_GAP / 2 + up) for name, (x, up) in _beside(graph, alone, column, row, read).items()}
    top = -_BAND_GAP / 2
    for phase in ("backward", "optimizer"):
        later = [name for name in reversed(order) if name in shown and graph.op(name).phase == phase]
        at |= {name: (x, top - down) for name, (x, down) in _beside(graph, later, column, row, read).items()}
        top = min((y for _, y in at.values()), default=top) - _BAND_GAP
    part = {name: (name, graph.op(name).phase or "forward", plan.placement[name]) for name in at}
    time_s = {part[name]: plan.scheduled[name].end_s - plan.scheduled[name].start_s for name in at}
    moved = {(part[source], part[name]): size for name in at for source, size in read[name].items()}
    blocks, found = blocks_of(plan), defaultdict[int, Counter[str]](Counter)
    for name in ahead or at:
        found[round(at[name][0])][blocks[name]] += 1
    last = max(round(x) for x, _ in at.values())
    columns = [found[x].most_common(1)[0][0] if found[x] else "" for x in range(last + 1)]
    short = short_names(columns)
    groups = tuple(short.get(name, "") for name in columns)
    return GraphLayout({part[name]: spot for name, spot in at.items()}, groups, time_s, moved, {})


def _columns_and_rows(
    ops: Sequence[str], read: Mapping[str, Iterable[str]]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Op → its depth, and op → its row: a chain keeps its row, and each new branch gets the lowest free row.

    Ops without edges to other ops are left out.
    """
    inside = {*ops}
    within = {name: [source for source in read[name] if source in inside] for name in ops}
    unread = Counter(source for sources in within.values() for source in sources)
    column, row, last = dict[str, int](), dict[str, int](), dict[int, str]()
    for name in (name for name in ops if within[name] or unread[name]):
        column[name] = max((column[source] + 1 for source in within[name]), default=0)
        unread.subtract(within[name])
        kept = [row[source] for source in within[name] if last[row[source]] == source]
        row[name] = min(kept, default=next(r for r in count() if r not in last or not unread[last[r]]))
        last[row[name]] = name
    for name in reversed(column):
        for source in within[name]:
            if not within[source]:
                column[source] = max(column[source], column[name] - 1)
    return column, row


def _beside(
    graph: OpGraph,
    ops: Iterable[str],
    column: Mapping[str, int],
    row: Mapping[str, int],
    read: Mapping[str, Iterable[str]],
) -> dict[str, tuple[float, float]]:
    """Op → the place of an op of its module, or else of an op that it reads; ops at one place are stacked."""
    homes = defaultdict[str | None, list[str]](list)
    for name in column:
        homes[graph.op(name).module].append(name)
    passed, stacked = Counter[str | None](), Counter[tuple[float, float]]()
    found: dict[str, tuple[float, float]] = {}
    for name in sorted(ops, key=lambda name: not graph.op(name).module):
        module = graph.op(name).module
        while module and module not in homes:
            module = module.rpartition(".")[0]
        home = homes[module or None]
        x, y = next((found[other] for other in read[name] if other in found), (0.0, 0.0))
        place = x, float(int(y))
        if module and home:
            forward = home[min(passed[module], len(home) - 1)]
            place = float(column[forward]), float(row[forward])
        passed[module] += 1
        found[name] = place[0], place[1] + _STACKED * stacked[place]
        stacked[place] += 1
    return found


def _by_lanes(plan: Plan) -> GraphLayout:
    """The layout of blocks, the outermost modules of at most a fortieth of the ops, in a lane per device and pass.

    An op without a module belongs to the block of an op that it reads. A graph without modules is cut into slices of
    its topological order, each named after its first op.
    """
    block, group = _blocks(plan)
    middle = _middles(plan, block)
    apart: dict[str, list[float]] = defaultdict(list)
    for name, position in middle.items():
        apart[group[name]].append(position)
    names = sorted(middle, key=lambda name: (median(apart[group[name]]), group[name], middle[name]))
    column = {name: float(position) for position, name in enumerate(names)}
    time_s: dict[Part, float] = defaultdict(float)
    part: dict[str, Part] = {}
    for entry in plan.ops:
        part[entry.op] = (block[entry.op], plan.graph.op(entry.op).phase or "forward", entry.device)
        time_s[part[entry.op]] += entry.end_s - entry.start_s
    moved: Counter[tuple[Part, Part]] = Counter()
    for edge in plan.graph.edges:
        source, target = part[edge.source], part[edge.target]
        if source[2] != target[2]:
            moved[source, target] += edge.bytes
    short = short_names(group[name] for name in names)
    devices, passes = list(plan.topology.device_index), {phase for _, phase, _ in time_s}
    lanes: dict[tuple[str, str], float] = {}
    for number, phase in enumerate(phase for phase in _PASSES if phase in passes):
        top = -number * (len(devices) + _BAND_GAP)
        lanes |= {(phase, device): top - row for row, device in enumerate(devices)}
    spots = {part: (column[part[0]], lanes[part[1:]]) for part in time_s}
    groups = tuple(short.get(group[name], "no module") for name in names)
    return GraphLayout(spots, groups, time_s, moved, lanes)


def _middles(plan: Plan, block: Mapping[str, str]) -> dict[str, float]:
    """Block → median position in the topological order of its forward ops that take time, or else of all its ops."""
    every, working = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for position, op_id in enumerate(plan.graph.topological_order):
        entry = plan.scheduled[op_id]
        every[block[op_id]].append(position)
        if plan.graph.op(op_id).phase in (None, "forward") and entry.end_s > entry.start_s:
            working[block[op_id]].append(position)
    return {name: median(working.get(name) or found) for name, found in every.items()}


def _blocks(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """Op → its block, a module's path or a slice of the order; and block → the module after which it is named."""
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


def _size(layout: GraphLayout) -> tuple[float, float]:
    """Width and height in inches at which columns and rows are distinct."""
    rows = [y for _, y in layout.spots.values()]
    height = max(rows) - min(rows) + 2 * _BAND_GAP
    row_inches = max(_LEAST_LANE_INCHES, _LANE_INCHES * min(1.0, 8 / height))
    return min(26.0, max(9.0, 4.0 + _COLUMN_INCHES * len(layout.groups))), min(26.0, 2.2 + row_inches * height)


def plot_placement(plan: Plan, ax: Axes | None = None) -> Axes:
    """The dataflow graph, forward to the right and backward to the left, coloured by device; returns the Axes.

    A dot's area grows with its op's time. Red lines are tensors sent between devices, broader for more bytes; faint
    lines lead from pass to pass. A large graph shows blocks of the module tree, with each device in a lane of its own.
    Columns and rows have no unit.
    """
    layout = lay_out(plan)
    ax = axes_or_new(ax, _size(layout))
    _draw_groups(ax, layout.groups)
    for y in layout.lanes.values():
        ax.axhline(y, color=GUIDE, linewidth=0.5, alpha=0.4, zorder=0.5)
    _draw_lines(ax, layout)
    _draw_dots(ax, plan, layout)
    rows: dict[str, list[float]] = defaultdict(list)
    for (_, phase, _), (_, y) in layout.spots.items():
        rows[phase].append(y)
    for phase, found in rows.items() if len(rows) > 1 else ():
        y, align = (max(found) + 0.6, "bottom") if phase == "forward" or layout.lanes else (min(found) - 0.6, "top")
        ax.text(0.003, y, _PASSES[phase], transform=ax.get_yaxis_transform(), fontsize=10, color=TEXT, va=align)
    every = [y for found in rows.values() for y in found]
    ax.set_ylim(min(every) - 1.4, max(every) + 1.6)
    ax.set_yticks(list(layout.lanes.values()), [plain(device) for _, device in layout.lanes], fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    entitle(ax, headline(plan), verdict(plan))
    beside, handles = (1.005, 1.0), _legend(plan, layout)
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=beside, frameon=False, fontsize=8, labelspacing=0.8)
    return ax


def _draw_groups(ax: Axes, groups: Iterable[str]) -> None:
    """Draw every other module on a grey ground, and below it as many module names as fit."""
    runs = [(name, [at for at, _ in run]) for name, run in groupby(enumerate(groups), key=lambda pair: pair[1])]
    ax.set_xlim(-1, runs[-1][1][-1] + 1)
    for name, columns in runs[::2]:
        ax.axvspan(columns[0] - 0.5, columns[-1] + 0.5, color=IDLE if name else "white", linewidth=0, zorder=0)
    least = _NAME_POINTS * (runs[-1][1][-1] + 2) / (72 * inches(ax)[0])
    named: dict[float, str] = {}
    for name, columns in runs:
        middle = (columns[0] + columns[-1]) / 2
        if name and middle >= max(named, default=-math.inf) + least:
            named[middle] = plain(name, 26)
    ax.set_xticks(list(named), list(named.values()), rotation=50, ha="right", fontsize=8)
    ax.tick_params(axis="x", length=2, pad=1)


def _draw_lines(ax: Axes, layout: GraphLayout) -> None:
    kinds: dict[str, list[tuple[Part, Part]]] = {"edges": [], "edges between devices": [], "edges between passes": []}
    for source, target in layout.moved_bytes:
        crosses = "edges between devices" if source[2] != target[2] else "edges"
        kinds[crosses if source[1] == target[1] else "edges between passes"].append((source, target))
    sizes = [layout.moved_bytes[ends] for ends in kinds["edges between devices"]]
    most = max(sizes, default=0) or 1
    # Many lines are drawn transparent, because they would cover everything else.
    broad, alpha = [0.3 + 2.2 * (size / most) ** 0.5 for size in sizes], 1.2 * _OPAQUE_LINES / max(1, len(sizes))
    looks = {
        "edges": {"colors": GUIDE, "linewidths": 0.6, "alpha": 0.7},
        "edges between devices": {"colors": CROSSING, "linewidths": broad, "alpha": min(0.6, max(0.06, alpha))},
        "edges between passes": {"colors": GUIDE, "linewidths": 0.4, "alpha": 0.25},
    }
    for order, (label, ends) in enumerate(kinds.items()):
        bends = not layout.lanes and label != "edges between passes"
        lines = [_line(layout.spots[source], layout.spots[target], bends) for source, target in ends]
        ax.add_collection(LineCollection(lines, label=label, zorder=1 + 0.1 * order, **looks[label]))


def _line(start: tuple[float, float], end: tuple[float, float], bends: bool) -> list[tuple[float, float]]:
    """A straight line, or one that `bends`: along the branch's row, which is free, to the column next to its end."""
    if bends and end[0] > start[0] + 1:
        return [start, (end[0] - 1, start[1]), end]
    if bends and end[0] < start[0] - 1:
        return [start, (start[0] - 1, end[1]), end]
    return [start, end]


def _draw_dots(ax: Axes, plan: Plan, layout: GraphLayout) -> None:
    """Draw large dots first, so that small ones stay visible."""
    longest_s = max(layout.time_s.values()) or 1.0
    # The dot of an op of median time is narrower than its column.
    column_points = 60 * inches(ax)[0] / (len(layout.groups) + 1)
    usual_s = median(layout.time_s.values()) or longest_s
    largest = min(_LARGEST_POINTS2, max(column_points**2, _SMALLEST_POINTS2) * longest_s / usual_s)
    for device, color in device_colors(plan.topology.device_index).items():
        parts = [part for part in layout.spots if part[2] == device and (layout.time_s[part] or not layout.lanes)]
        parts.sort(key=lambda part: -layout.time_s[part])
        areas = [max(_SMALLEST_POINTS2, largest * layout.time_s[part] / longest_s) for part in parts]
        x, y = [layout.spots[part][0] for part in parts], [layout.spots[part][1] for part in parts]
        ax.scatter(x, y, s=areas, color=color, edgecolors="white", linewidths=0.3, zorder=3, label=plain(device))


def _legend(plan: Plan, layout: GraphLayout) -> list[Line2D]:
    """Legend entries: devices with their ops and share of the time, transfers, and the meaning of lines and areas."""
    ops, total_s = Counter(plan.placement.values()), sum(plan.busy_s.values())
    handles = []
    for device, color in device_colors(plan.topology.device_index).items():
        share = f"{100 * plan.busy_s[device] / (total_s or 1.0):.0f} % of the time"
        label = f"{plain(device)}: {ops[device]} ops, {share}"
        handles.append(Line2D([], [], marker="o", linestyle="", markersize=8, color=color, label=label))
    texts = [f"{len(plan.transfers)} transfers, {format_bytes(sum(sent.bytes for sent in plan.transfers))}"]
    texts.append(f"area: time, at most {format_seconds(max(layout.time_s.values()))}")
    hidden = len(plan.ops) - len(layout.spots)
    if hidden or layout.lanes:
        texts.append(f"{len(plan.ops)} ops in {len(layout.groups)} blocks" if layout.lanes else f"{hidden} ops hidden")
    return [
        *handles,
        Line2D([], [], color=CROSSING, linewidth=1.6, label="sent between devices"),
        Line2D([], [], color=GUIDE, linewidth=0.6, alpha=0.5, label="faint: from one pass to the next"),
        *(Line2D([], [], linestyle="", label=text) for text in texts),
    ]
