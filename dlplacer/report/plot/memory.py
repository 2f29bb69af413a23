"""Live memory over time."""

import math

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dlplacer.check import live_bytes
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes
from dlplacer.report.page.summary import headline
from dlplacer.report.plot.style.axes import axes_or_new, label_bytes, label_seconds, plain
from dlplacer.report.plot.style.colors import TEXT, device_colors

_FAR_ABOVE = 2.5
_FIGURE_SHARE = 0.045
_FIGURES_SHOWN = 5


def memory_size(plan: Plan) -> tuple[float, float]:
    """Inches, width and height, that suit `plot_memory`."""
    return 13.0, 6.0 + 0.1 * len(plan.topology.devices)


def plot_memory(plan: Plan, ax: Axes | None = None) -> Axes:
    """What is alive on every device over the step; returns the Axes, with seconds and bytes.

    Peaks are marked. Dashed: the sum of footprints of eq. 13, which counts every op's all step, and no copies. Dotted:
    the capacity, where it is limited; one that is far above all else is named at the upper edge.
    """
    ax = axes_or_new(ax, memory_size(plan))
    colors = device_colors(plan.topology.device_index)
    levels = {device.id: live_bytes(plan, device.id) for device in plan.topology.devices}
    sums = _footprints(plan)
    top = 1.12 * max(1, *sums.values(), *(level for curve in levels.values() for _, level in curve))
    for device, curve in levels.items():
        times = [*(time_s for time_s, _ in curve), plan.makespan_s]
        values = [*(level for _, level in curve), curve[-1][1]]
        ax.step(times, values, where="post", color=colors[device], linewidth=1.3, label=plain(device))
        ax.fill_between(times, values, step="post", color=colors[device], alpha=0.10, linewidth=0)
        ax.axhline(sums[device], color=colors[device], linestyle="--", linewidth=1.0)
    top = _draw_capacities(ax, plan, colors, top)
    _mark_peaks(ax, {device: max(curve, key=lambda point: point[1]) for device, curve in levels.items()}, colors, top)
    ax.set_xlim(0, plan.makespan_s or 1.0)
    ax.set_ylim(0, top)
    label_seconds(ax.xaxis, plan.makespan_s, "time")
    label_bytes(ax.yaxis, top, "alive")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(f"Memory: {plain(headline(plan), 100)}", loc="left", fontsize=10)
    _legend(ax, plan, colors, {device: max(level for _, level in curve) for device, curve in levels.items()}, sums)
    return ax


def _footprints(plan: Plan) -> dict[str, int]:
    """Device → Σ M(k) of its ops, eq. 13."""
    total = dict.fromkeys(plan.topology.device_index, 0)
    for op in plan.graph.ops:
        total[plan.placement[op.id]] += op.footprint_bytes
    return total


def _mark_peaks(ax: Axes, peaks: dict[str, tuple[float, int]], colors: dict[str, str], top: float) -> None:
    """A dot on every peak; the highest ones are labelled."""
    for device, (time_s, peak) in peaks.items():
        ax.plot([time_s], [peak], marker="o", markersize=5, color=colors[device], markeredgecolor="white", zorder=4)
    highest = sorted(peaks, key=lambda device: peaks[device][1])[-_FIGURES_SHOWN:]
    heights = _apart([peaks[device][1] + _FIGURE_SHARE * top / 2 for device in highest], top)
    for device, height in zip(highest, heights, strict=True):
        time_s, peak = peaks[device]
        ax.annotate(
            f" peak {format_bytes(peak)}",
            (time_s, height),
            color=colors[device],
            fontsize=9,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            zorder=5,
        )


def _apart(heights: list[float], top: float) -> list[float]:
    """Ascending heights a line of text apart: pushed up, then down again from the upper edge."""
    line = _FIGURE_SHARE * top
    placed = [-line]
    for height in heights:
        placed.append(max(height, placed[-1] + line))
    limit = top
    for position in range(len(placed) - 1, 0, -1):
        limit = placed[position] = min(placed[position], limit - line)
    return placed[1:]


def _draw_capacities(ax: Axes, plan: Plan, colors: dict[str, str], top: float) -> float:
    """A line per capacity; returns the upper end of the picture."""
    capacities: dict[int, list[str]] = {}
    for device in plan.topology.devices:
        if device.memory_bytes is not None:
            capacities.setdefault(device.memory_bytes, []).append(device.id)
    near = [capacity for capacity in capacities if capacity <= _FAR_ABOVE * top]
    for capacity, devices in capacities.items():
        color = colors[devices[0]] if len(capacities) > 1 else TEXT
        ax.axhline(capacity, color=color, linestyle=":", linewidth=1.6, label="capacity")
    far = sorted(set(capacities) - set(near))
    if far:
        text = "↑ capacity " + ", ".join(map(format_bytes, far))
        ax.text(1.0, 1.0, text, transform=ax.transAxes, ha="right", va="bottom", fontsize=9, color=TEXT)
    return max([top, *(1.08 * capacity for capacity in near)])


def _legend(ax: Axes, plan: Plan, colors: dict[str, str], peaks: dict[str, int], sums: dict[str, int]) -> None:
    handles = []
    for device in plan.topology.devices:
        capacity = "unlimited" if device.memory_bytes is None else format_bytes(device.memory_bytes)
        text = f"{plain(device.id)}: peak {format_bytes(peaks[device.id])}, sum {format_bytes(sums[device.id])}, "
        handles.append(Line2D([], [], color=colors[device.id], linewidth=2, label=f"{text}capacity {capacity}"))
    handles.append(Line2D([], [], color=TEXT, linestyle="--", linewidth=1, label="sum of footprints (eq. 13)"))
    if any((device.memory_bytes or math.inf) <= ax.get_ylim()[1] for device in plan.topology.devices):
        handles.append(Line2D([], [], color=TEXT, linestyle=":", linewidth=1.6, label="capacity"))
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=8)
