"""Live memory over time."""

import math
from collections import Counter

from matplotlib.axes import Axes

from dlplacer.check import live_bytes
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes
from dlplacer.report.plot.style import IDLE, TEXT, axes_or_new, device_colors, entitle, label_rows, label_seconds, plain
from dlplacer.report.summary import headline

_LEAST_INCHES, _MOST_INCHES = 5.0, 40.0
_ROW_INCHES = 0.85
_ROW_FILLED = 0.86
_FAR_ABOVE = 2.5


def plot_memory(plan: Plan, ax: Axes | None = None) -> Axes:
    """Axes with the live bytes of every device against seconds of the step; y is in rows.

    Each device has a row; all rows are as high as the greatest peak, or as the highest line near it. Dots mark the
    peaks. The dashed line is the sum of footprints (Pal et al. 2019, eq. 13): all ops for the whole step, without
    copies. The dotted line is the capacity, if it is limited. Values far above all peaks appear only in the labels.
    """
    ax = axes_or_new(ax, (13.0, min(_MOST_INCHES, max(_LEAST_INCHES, 1.5 + _ROW_INCHES * len(plan.topology.devices)))))
    curves = {device.id: live_bytes(plan, device.id) for device in plan.topology.devices}
    colors, sums = device_colors(curves), Counter(dict.fromkeys(curves, 0))  # Σ M(k) of eq. 13
    for op in plan.graph.ops:
        sums[plan.placement[op.id]] += op.footprint_bytes
    peaks = {device: max(curve, key=lambda point: point[1]) for device, curve in curves.items()}
    greatest = max(1, *(peak for _, peak in peaks.values()))
    limits = {device.id: device.memory_bytes or math.inf for device in plan.topology.devices}
    near = [limit for limit in (*limits.values(), *sums.values()) if limit <= _FAR_ABOVE * greatest]
    scale = _ROW_FILLED / max([greatest, *near])
    names, floors = [], [float(len(curves) - 1 - row) for row in range(len(curves))]
    for floor, (device, curve) in zip(floors, curves.items(), strict=True):
        time_s, peak = peaks[device]
        times_s = [*(time_s for time_s, _ in curve), plan.makespan_s]
        levels = [floor + scale * level for level in (*(level for _, level in curve), curve[-1][1])]
        ax.axhspan(floor, floor + _ROW_FILLED, color=IDLE, linewidth=0, zorder=0.5)
        ax.step(times_s, levels, where="post", color=colors[device], linewidth=1.3, label=plain(device))
        ax.fill_between(times_s, levels, floor, step="post", color=colors[device], alpha=0.3, linewidth=0)
        for limit, style in ((limits[device], ":"), (sums[device], "--")):
            if scale * limit <= 1:
                ax.axhline(floor + scale * limit, color=TEXT if style == ":" else colors[device], linestyle=style, lw=1)
        ax.plot([time_s], [floor + scale * peak], marker="o", ms=4, color=colors[device], mec="white", zorder=4)
        capacity = f" of {format_bytes(int(limits[device]))}" if limits[device] < math.inf else ""
        names.append(f"{plain(device)}\npeak {format_bytes(peak)}{capacity}\nfootprints {format_bytes(sums[device])}")
    label_rows(ax, [floor + _ROW_FILLED / 2 for floor in floors], names)
    ax.tick_params(axis="y", labelsize=8)
    ax.set_xlim(0, plan.makespan_s or 1.0)
    ax.set_ylim(0, len(curves))
    label_seconds(ax.xaxis, ax.get_xlim()[1], "time")
    height = f"a row is {format_bytes(int(_ROW_FILLED / scale))} high"
    legend = f"{height}; dashed: sum of footprints (eq. 13), dotted: capacity, if within the row"
    ax.set_xlabel(f"{ax.get_xlabel()}\n{legend}")
    entitle(ax, f"Memory: {headline(plan)}")
    return ax
