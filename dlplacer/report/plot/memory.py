"""Live memory over time."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

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
    inches,
    label_bytes,
    label_seconds,
    plain,
    text_points,
)
from dlplacer.report.summary import headline

Steps = Sequence[tuple[float, float]]
"""A curve in steps: (from, level), in order."""

_ABOVE, _FARTHEST = 0.35, 12


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in the units of the axes."""

    left: float
    low: float
    right: float
    high: float

    def meets(self, other: "Box") -> bool:
        """True if the two share more than an edge."""
        across = self.left < other.right and other.left < self.right
        return across and self.low < other.high and other.low < self.high


def place_labels(
    peaks: Mapping[str, tuple[float, float]],
    curves: Mapping[str, Steps],
    sizes: Mapping[str, tuple[float, float]],
    picture: Box,
    levels: Sequence[float] = (),
) -> dict[str, Box]:
    """Name → the box of its label: the nearest to its peak that no curve, no level and no other label passes.

    If there is no such box, as in a picture full of curves, it is the one that fewest curves pass.

    Parameters
    ----------
    peaks
        Name → the point that the label speaks of.
    curves
        Curves that labels must not cover; the last level holds up to the right edge.
    sizes
        Name → width and height of the label.
    picture
        The box that labels stay within.
    levels
        Heights of lines from edge to edge, such as capacities.
    """
    placed: dict[str, Box] = {}
    for name in sorted(peaks, key=lambda name: -peaks[name][1]):
        boxes = list(_boxes(peaks[name], sizes[name], picture))
        covered = [_crossings(box, curves, placed, picture, levels) for box in boxes]
        placed[name] = boxes[covered.index(min(covered))]
    return placed


def _boxes(peak: tuple[float, float], size: tuple[float, float], picture: Box) -> Iterator[Box]:
    """Candidates, the nearest first: above and below the peak, right and left of it, further and further away."""
    (x, y), (width, height) = peak, size
    for away in range(_FARTHEST):
        far = (_ABOVE + away / 2) * height
        for low, left in product((y + far, y - far - height), (x, x - width, x - width / 2)):
            left = min(max(left, picture.left), picture.right - width)
            low = min(max(low, picture.low), picture.high - height)
            yield Box(left, low, left + width, low + height)


def _crossings(
    box: Box, curves: Mapping[str, Steps], placed: Mapping[str, Box], picture: Box, levels: Sequence[float]
) -> int:
    """A penalty for the labels, lines and curve steps that the box would cover; labels weigh most."""
    labels = sum(box.meets(other) for other in placed.values())
    lines = sum(box.low < level < box.high for level in levels)
    return 1000 * labels + lines + sum(_steps_inside(box, curve, picture.right) for curve in curves.values())


def _steps_inside(box: Box, curve: Steps, end: float) -> int:
    """The number of steps and risers of a curve that pass through the box."""
    first = max(0, bisect_right(curve, box.left, key=lambda step: step[0]) - 1)
    last = bisect_left(curve, box.right, key=lambda step: step[0])
    found = 0
    for (begin, level), (until, following) in pairwise((*curve[first : last + 1], (end, curve[-1][1]))):
        found += begin < box.right and box.left < until and box.low < level < box.high
        low, high = sorted((level, following))
        found += box.left < until < box.right and low < box.high and box.low < high
    return found


Curve = list[tuple[float, int]]
"""(seconds, bytes from then on), in order."""

_MOST_TOGETHER = 2
_ROW_INCHES = 0.85
_ROW_FILLED = 0.86
_FAR_ABOVE = 2.5
_FIGURE_POINTS = 9
_LINE_POINTS = 14
_AROUND_POINTS = 6
# Widths are known of the regular face; the bold one is wider by as much.
_BOLD = 1.15


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
    limits = [device.memory_bytes for device in plan.topology.devices if device.memory_bytes is not None]
    _mark_peaks(ax, curves, peaks, colors, [*limits, *near.values()])
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


def _mark_peaks(
    ax: Axes,
    curves: Mapping[str, Curve],
    peaks: Mapping[str, tuple[float, int]],
    colors: Mapping[str, str],
    levels: Sequence[float],
) -> None:
    """A labelled dot on every peak, once the limits of the axes are set; labels keep clear of lines at these levels."""
    texts = {device: f"peak {format_bytes(peak)}" for device, (_, peak) in peaks.items()}
    (_, span_s), (_, top) = ax.get_xlim(), ax.get_ylim()
    across, up = (length / (72 * inch) for length, inch in zip((span_s, top), inches(ax), strict=True))
    sizes = {
        device: (across * (_BOLD * text_points(text, _FIGURE_POINTS) + _AROUND_POINTS), up * _LINE_POINTS)
        for device, text in texts.items()
    }
    places = place_labels(peaks, curves, sizes, Box(0.0, 0.0, span_s, top), levels)
    for device, (time_s, peak) in peaks.items():
        ax.plot([time_s], [peak], marker="o", markersize=5, color=colors[device], markeredgecolor="white", zorder=4)
        box = places[device]
        ax.annotate(
            texts[device],
            ((box.left + box.right) / 2, (box.low + box.high) / 2),
            color=colors[device],
            fontsize=_FIGURE_POINTS,
            fontweight="bold",
            ha="center",
            va="center",
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
