"""A machine as a picture: devices in a row, routers above them, links coloured by rate and latency."""

from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import matplotlib
import networkx as nx
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from dlplacer.core.topology import Link, Topology
from dlplacer.core.units import format_bytes, format_bytes_per_s, format_seconds
from dlplacer.report.plot.style import TEXT, axes_or_new, device_colors, entitle, ink_on, plain, text_points


def machine_layout(topology: Topology) -> dict[str, tuple[float, float]]:
    """Node → (column, level): devices at level 0, one per column; a router's level is its distance from a device.

    Devices of one router are side by side, and the router is above the middle of its lower neighbours.
    """
    joined: dict[str, list[str]] = {node.id: [] for node in topology.nodes}
    for link in topology.links:
        joined[link.source].append(link.target)
        joined[link.target].append(link.source)
    # Number of links to the nearest device; a router without a path to any device is on top.
    known = nx.multi_source_dijkstra_path_length(nx.Graph(joined), set(topology.device_index))
    level = {node.id: known.get(node.id, 1 + max(known.values())) for node in topology.nodes}
    x = {name: float(place) for place, name in enumerate(_row(topology, joined, level))}
    routers = sorted((router.id for router in topology.routers), key=lambda name: level[name])
    for height in dict.fromkeys(level[name] for name in routers):
        here = [name for name in routers if level[name] == height]
        wanted = {
            name: fmean([x[other] for other in joined[name] if level[other] < height] or [len(topology.devices) - 1.0])
            for name in here
        }
        x |= _apart(wanted)
    return {node.id: (x[node.id], float(level[node.id])) for node in topology.nodes}


def _row(topology: Topology, joined: Mapping[str, list[str]], level: Mapping[str, int]) -> list[str]:
    """The devices from left to right, visited from the highest routers down; devices of one router are together."""
    row: dict[str, None] = {}
    waiting = sorted((router.id for router in reversed(topology.routers)), key=lambda name: level[name])
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        below = [other for other in joined[name] if level[other] < level[name]]
        row |= dict.fromkeys(other for other in below if not level[other])
        waiting += [other for other in reversed(below) if level[other]]
    return list(row | dict.fromkeys(device.id for device in topology.devices))


def _apart(wanted: Mapping[str, float]) -> dict[str, float]:
    """Columns at least 1 apart, in the order of the wanted columns and with the same mean."""
    placed: dict[str, float] = {}
    last = float("-inf")
    for name in sorted(wanted, key=lambda name: wanted[name]):
        last = placed[name] = max(wanted[name], last + 1.0)
    shift = fmean(wanted.values()) - fmean(placed.values())
    return {name: column + shift for name, column in placed.items()}


Spots = Mapping[str, tuple[float, float]]
"""Node → the coordinates of its box."""

_ROUTER = "#e4e4e4"
_MOST_CLASSES = 8
_COLUMN_INCHES = 1.25
_MOST_INCHES = 40.0
_LABEL_POINTS = 9
_AROUND_INCHES = 0.35
# The most letters, over all labels side by side, that fit into the widest picture.
_MOST_LETTERS = 360
_LEVEL_INCHES = 1.1
_LEVEL_INCHES_PER_LINK = 0.3
_SPECTRUM = "viridis"


def _size(topology: Topology, spots: Spots) -> tuple[float, float]:
    """Width and height in inches."""
    lowest, highest = max(_arcs(topology, spots), default=0.0), max(y for _, y in spots.values())
    columns = max(x for x, _ in spots.values()) - min(x for x, _ in spots.values())
    joins = Counter(name for link in topology.links for name in (link.source, link.target))
    level = max(_LEVEL_INCHES, *(_LEVEL_INCHES_PER_LINK * joins[router.id] for router in topology.routers), 0.0)
    # Wide enough for the longest line of a label.
    lines = [line for node in topology.nodes for line in _lines(topology, node.id)]
    label = _AROUND_INCHES + max(text_points(line, _LABEL_POINTS) for line in lines) / 72
    width = max(_COLUMN_INCHES, label) * (columns + 1.6)
    return min(_MOST_INCHES, max(5.0, width)), min(20.0, 1.9 + level * (highest + lowest))


def _lines(topology: Topology, name: str) -> list[str]:
    """The lines of text in a node's box, shorter if there are more nodes."""
    limit = max(8, min(24, _MOST_LETTERS // len(topology.nodes)))
    if name not in topology.device_index:
        return [plain(name, limit)]
    device = topology.device(name)
    memory = [] if device.memory_bytes is None else [format_bytes(device.memory_bytes)]
    return [plain(name, limit), plain(device.type, limit), *memory]


def plot_topology(topology: Topology, ax: Axes | None = None) -> Axes:
    """Devices as coloured boxes in a row, routers above; returns the Axes.

    Links between devices that are not neighbours pass below the row. The colour encodes rate and latency; the
    legend names the eight fastest kinds of links.
    """
    spots = machine_layout(topology)
    ax = axes_or_new(ax, _size(topology, spots))
    _draw_links(ax, topology, spots)
    colors = device_colors(topology.device_index)
    for node in topology.nodes:
        label, color = "\n".join(_lines(topology, node.id)), colors.get(node.id, _ROUTER)
        box = {"boxstyle": "round,pad=0.4", "facecolor": color, "edgecolor": TEXT}
        look: dict[str, Any] = {"fontsize": _LABEL_POINTS, "color": ink_on(color), "bbox": box, "zorder": 3}
        ax.text(*spots[node.id], label, ha="center", va="center", **look)
    columns, levels = zip(*spots.values(), strict=True)
    ax.set_xlim(min(columns) - 0.7, max(columns) + 0.7)
    ax.set_ylim(-max(_arcs(topology, spots), default=0.0) - 0.45, max(levels) + 0.45)
    ax.set_axis_off()
    entitle(ax, topology.name or "topology")
    return ax


def _draw_links(ax: Axes, topology: Topology, spots: Spots) -> None:
    rates = {_carries(link): link.total_bytes_per_s for link in topology.links}
    names = sorted(rates, key=lambda name: -rates[name])
    shades = matplotlib.colormaps[_SPECTRUM]
    color_of = {name: shades(0.9 * place / max(1, len(names) - 1)) for place, name in enumerate(names)}
    width_of = {name: 1.5 + 3.5 * (rates[name] / rates[names[0]]) ** 0.5 for name in names}
    for link, low in zip(topology.links, _arcs(topology, spots), strict=True):
        name = _carries(link)
        (x0, y0), (x1, y1) = spots[link.source], spots[link.target]
        middle = ((x0 + x1) / 2, (y0 + y1) / 2 - low)
        curve = Path([(x0, y0), (middle[0], middle[1] - low), (x1, y1)], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        style = {"edgecolor": color_of[name], "linewidth": width_of[name], "label": "link"}
        ax.add_patch(PathPatch(curve, facecolor="none", zorder=1, **style))
    if names:
        shown = names[:_MOST_CLASSES]
        handles = [Line2D([], [], color=color_of[name], linewidth=width_of[name], label=name) for name in shown]
        ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, frameon=False, fontsize=8)


def _carries(link: Link) -> str:
    """Count, rate, latency and duplex, which distinguish the kinds of links."""
    count = f"{link.count} × " if link.count > 1 else ""
    duplex = ", half duplex" if link.duplex == "half" else ""
    return f"{count}{format_bytes_per_s(link.bytes_per_s)}, {format_seconds(link.latency_s)}{duplex}"


def _arcs(topology: Topology, spots: Spots) -> list[float]:
    """[link] → depth of its middle below a straight line: 0 unless other devices lie between its ends."""
    apart = [abs(spots[link.source][0] - spots[link.target][0]) for link in topology.links]
    both = [{link.source, link.target} <= topology.device_index.keys() for link in topology.links]
    return [0.25 + 0.2 * far if low and far > 1.5 else 0.0 for far, low in zip(apart, both, strict=True)]
