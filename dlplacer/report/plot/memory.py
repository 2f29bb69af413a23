"""Live memory over time."""

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dlplacer.check import live_bytes
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes
from dlplacer.report.plot.style import (
    IDLE,
    TEXT,
    axes_or_new,
    device_colors,
    entitle,
    label_bytes,
    label_seconds,
    plain,
)
from dlplacer.report.summary import headline

Curve = list[tuple[float, int]]
"""(seconds, bytes from then on), in order."""

_MOST_TOGETHER = 2
_ROW_INCHES = 0.85
_ROW_FILLED = 0.86
_FAR_ABOVE = 2.5
_APART_POINTS = 5
_EDGE = 0.2
"""Share of width and height that a label takes at most."""


def memory_size(plan: Plan) -> tuple[float, float]:
    """Inches, width and height, that suit `plot_memory`."""
    count = len(plan.topology.devices)
    return 13.0, 6.2 if count <= _MOST_TOGETHER else min(40.0, 1.5 + _ROW_INCHES * count)


def plot_memory(plan: Plan, ax: Axes | None = None) -> Axes:
    """Axes with the live bytes of every device over the step, in seconds and bytes.

    One or two devices share a scale. More have a row each, all of the same height in bytes, and the y axis counts rows.
    Peaks are marked. Dashed: the sum of footprints of eq. 13, which counts every op during the whole step, and no
    copies. Dotted: the capacity, if it is limited. A line far above all peaks is named in words.
    """
    ax = axes_or_new(ax, memory_size(plan))
    curves = {device.id: live_bytes(plan, device.id) for device in plan.topology.devices}
    ax.set_xlim(0, plan.makespan_s or 1.0)
    label_seconds(ax.xaxis, ax.get_xlim()[1], "time")
    if len(curves) <= _MOST_TOGETHER:
        _draw_together(ax, plan, curves)
    else:
        ax.set_xlabel(f"{ax.get_xlabel()}\n{_draw_rows(ax, plan, curves)}")
    ax.spines[["top", "right"]].set_visible(False)
    entitle(ax, f"Memory: {headline(plan)}")
    return ax


def _draw_together(ax: Axes, plan: Plan, curves: Mapping[str, Curve]) -> None:
    colors, sums = device_colors(curves), _footprints(plan)
    peaks = {device: max(curve, key=lambda point: point[1]) for device, curve in curves.items()}
    greatest = max(1, *(peak for _, peak in peaks.values()))
    near = {device: size for device, size in sums.items() if size <= _FAR_ABOVE * greatest}
    top = 1.12 * max([greatest, *near.values()])
    for device, curve in curves.items():
        _draw_curve(ax, plan, curve, colors[device], plain(device))
        if device in near:
            ax.axhline(sums[device], color=colors[device], linestyle="--", linewidth=1.0)
    top = _draw_capacities(ax, plan, colors, top)
    ax.set_ylim(0, top)
    _mark_peaks(ax, peaks, colors)
    label_bytes(ax.yaxis, top, "alive")
    _legend(ax, plan, colors, {device: peak for device, (_, peak) in peaks.items()}, sums)


def _draw_rows(ax: Axes, plan: Plan, curves: Mapping[str, Curve]) -> str:
    """Small multiples: a row of height 1 per device, filled by the greatest peak or near limit. Says how to read it."""
    colors, sums = device_colors(curves), _footprints(plan)
    peaks = {device: max(curve, key=lambda point: point[1]) for device, curve in curves.items()}
    greatest = max(1, *(peak for _, peak in peaks.values()))
    limits = {device.id: device.memory_bytes or math.inf for device in plan.topology.devices}
    near = [limit for limit in (*limits.values(), *sums.values()) if limit <= _FAR_ABOVE * greatest]
    scale = _ROW_FILLED / max([greatest, *near])
    names = []
    for row, (device, curve) in enumerate(curves.items()):
        floor, (time_s, peak) = len(curves) - 1 - row, peaks[device]
        ax.axhspan(floor, floor + _ROW_FILLED, color=IDLE, linewidth=0, zorder=0.5)
        _draw_curve(ax, plan, curve, colors[device], plain(device), float(floor), scale)
        for limit, style in ((limits[device], ":"), (sums[device], "--")):
            if scale * limit <= 1:
                ax.axhline(floor + scale * limit, color=TEXT if style == ":" else colors[device], linestyle=style, lw=1)
        ax.plot([time_s], [floor + scale * peak], marker="o", ms=4, color=colors[device], mec="white", zorder=4)
        capacity = f" of {format_bytes(int(limits[device]))}" if limits[device] < math.inf else ""
        names.append(f"{plain(device)}\npeak {format_bytes(peak)}{capacity}\nfootprints {format_bytes(sums[device])}")
    ax.set_yticks([len(curves) - 1 - row + _ROW_FILLED / 2 for row in range(len(curves))], names, fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_ylim(0, len(curves))
    height = f"a row is {format_bytes(int(_ROW_FILLED / scale))} high"
    return f"{height}; dashed: sum of footprints (eq. 13), dotted: capacity, where they are within it"


def _draw_curve(
    ax: Axes, plan: Plan, curve: Curve, color: str, label: str, floor: float = 0.0, scale: float = 1.0
) -> None:
    times = [*(time_s for time_s, _ in curve), plan.makespan_s]
    values = [floor + scale * level for level in (*(level for _, level in curve), curve[-1][1])]
    ax.step(times, values, where="post", color=color, linewidth=1.3, label=label)
    opacity = 0.10 if scale == 1.0 else 0.3
    ax.fill_between(times, values, floor, step="post", color=color, alpha=opacity, linewidth=0)


def _footprints(plan: Plan) -> dict[str, int]:
    """Device → Σ M(k) of its ops, eq. 13."""
    total = dict.fromkeys(plan.topology.device_index, 0)
    for op in plan.graph.ops:
        total[plan.placement[op.id]] += op.footprint_bytes
    return total


def _mark_peaks(ax: Axes, peaks: Mapping[str, tuple[float, int]], colors: Mapping[str, str]) -> None:
    """A labelled dot on every peak, once the limits of the axes are set; labels lead away from each other."""
    (_, span_s), (_, top) = ax.get_xlim(), ax.get_ylim()
    first, greatest = min(peaks, key=lambda device: peaks[device]), max(peaks, key=lambda device: peaks[device][1])
    sides = {
        device: ("left" if time_s < _EDGE * span_s else "right")
        if device == first
        else ("right" if time_s > (1 - _EDGE) * span_s else "left")
        for device, (time_s, _) in peaks.items()
    }
    for device, (time_s, peak) in peaks.items():
        above = device == greatest or peak < _EDGE * top or len({*sides.values()}) > 1
        ax.plot([time_s], [peak], marker="o", markersize=5, color=colors[device], markeredgecolor="white", zorder=4)
        ax.annotate(
            f"peak {format_bytes(peak)}",
            (time_s, peak),
            xytext=(0, _APART_POINTS if above else -_APART_POINTS),
            textcoords="offset points",
            color=colors[device],
            fontsize=9,
            fontweight="bold",
            ha=sides[device],
            va="bottom" if above else "top",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            zorder=5,
        )


def _draw_capacities(ax: Axes, plan: Plan, colors: Mapping[str, str], top: float) -> float:
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


def _legend(ax: Axes, plan: Plan, colors: Mapping[str, str], peaks: Mapping[str, int], sums: Mapping[str, int]) -> None:
    handles = []
    for device in plan.topology.devices:
        capacity = "unlimited" if device.memory_bytes is None else format_bytes(device.memory_bytes)
        text = f"{plain(device.id)}: peak {format_bytes(peaks[device.id])}, sum {format_bytes(sums[device.id])}, "
        handles.append(Line2D([], [], color=colors[device.id], linewidth=2, label=f"{text}capacity {capacity}"))
    handles.append(Line2D([], [], color=TEXT, linestyle="--", linewidth=1, label="sum of footprints (eq. 13)"))
    if any((device.memory_bytes or math.inf) <= ax.get_ylim()[1] for device in plan.topology.devices):
        handles.append(Line2D([], [], color=TEXT, linestyle=":", linewidth=1.6, label="capacity"))
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=8)
