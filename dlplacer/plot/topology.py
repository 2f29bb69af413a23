"""A machine as a picture: devices, routers, links with their rates."""

from typing import Any

from matplotlib.axes import Axes

from dlplacer.plot.axes import axes_or_new, plain
from dlplacer.plot.colors import TEXT, device_colors
from dlplacer.topology import Topology
from dlplacer.units import format_bytes, format_bytes_per_s, format_seconds

_ROUTER = "#e4e4e4"


def topology_size(topology: Topology) -> tuple[float, float]:
    """Inches, width and height, that suit `plot_topology`."""
    side = 5.0 + 0.45 * len(topology.nodes)
    return min(side * 1.3, 22.0), min(side, 16.0)


def plot_topology(topology: Topology, ax: Axes | None = None) -> Axes:
    """Devices as coloured boxes, routers as grey ones, links labelled with rate and latency; returns the Axes."""
    ax = axes_or_new(ax, topology_size(topology))
    spots = _spots(topology)
    colors = device_colors(topology.device_index)
    widest = max((link.total_bytes_per_s for link in topology.links), default=1.0)
    for link in topology.links:
        (x0, y0), (x1, y1) = spots[link.source], spots[link.target]
        width = 1.0 + 4.0 * (link.total_bytes_per_s / widest) ** 0.5
        ax.plot([x0, x1], [y0, y1], color="#9a9a9a", linewidth=width, zorder=1, solid_capstyle="round")
        count = f"{link.count} × " if link.count > 1 else ""
        label = f"{count}{format_bytes_per_s(link.bytes_per_s)}\n{format_seconds(link.latency_s)}"
        ax.text(
            x0 + 0.42 * (x1 - x0),
            y0 + 0.42 * (y1 - y0),
            label,
            fontsize=7,
            color=TEXT,
            ha="center",
            va="center",
            zorder=2,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
        )
    for node in topology.nodes:
        x, y = spots[node.id]
        label = plain(node.id)
        if node.id in colors:
            device = topology.device(node.id)
            memory = "" if device.memory_bytes is None else f"\n{format_bytes(device.memory_bytes)}"
            label += f"\n{plain(device.type, 24)}{memory}"
        ax.text(
            x,
            y,
            label,
            fontsize=9,
            ha="center",
            va="center",
            zorder=3,
            bbox={"boxstyle": "round,pad=0.4", "facecolor": colors.get(node.id, _ROUTER), "edgecolor": TEXT},
        )
    ax.margins(0.12)
    ax.set_axis_off()
    ax.set_title(plain(topology.name or "topology", 100), loc="left", fontsize=11)
    return ax


def _spots(topology: Topology) -> dict[str, tuple[float, float]]:
    """Node → where it is drawn; Kamada–Kawai on hops, which is the same every time."""
    import networkx

    nx: Any = networkx
    graph = topology.to_networkx()
    spots: dict[str, tuple[float, float]] = {}
    for number, nodes in enumerate(nx.connected_components(graph)):
        names = sorted(nodes, key=lambda name: (len(name), name))
        found = {name: (float(place), 0.0) for place, name in enumerate(names)}
        if len(names) > 2:
            found = nx.kamada_kawai_layout(graph.subgraph(nodes), pos=nx.circular_layout(names), weight=None)
        spots.update({name: (float(x) + 2.6 * number, float(y)) for name, (x, y) in found.items()})
    return spots
