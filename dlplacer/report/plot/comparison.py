"""Step times of several methods on one problem."""

from matplotlib.axes import Axes

from dlplacer.core.units import format_seconds
from dlplacer.planning.compare import Comparison, MethodResult
from dlplacer.report.plot.style import GUIDE, IDLE, TEXT, axes_or_new, entitle, label_rows, label_seconds, plain

_PROVED = "#4c78a8"
_GAP = "#b9cbe0"
_HEIGHT = 0.72
_LEGEND = "dark: up to the best lower bound; pale: gap to it; ×: speedup over the best single device"
_ROOM_FOR_LABELS = 1.26


def plot_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """A bar per method, the best on top, as long as its step time; returns the Axes, with seconds along x.

    Solid up to the best lower bound, which the dashed line marks, paler beyond it: the gap. A bar is labelled with the
    step time, the speedup over the best single device and the gap; a method without a plan with the reason.
    """
    ax = axes_or_new(ax, (10.0, 1.8 + 0.38 * len(comparison.rows)))
    longest = max((row.makespan_s for row in comparison.rows if row.makespan_s is not None), default=0.0)
    span = _ROOM_FOR_LABELS * max(longest, comparison.lower_bound_s) or 1.0
    for place, row in enumerate(comparison.rows):
        if row.makespan_s is not None:
            proved = min(row.makespan_s, comparison.lower_bound_s)
            ax.barh(place, row.makespan_s, height=_HEIGHT, color=_GAP, zorder=2)
            ax.barh(place, proved, height=_HEIGHT, color=_PROVED, zorder=2)
        ax.annotate(
            _label(comparison, row),
            (row.makespan_s or 0.0, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=TEXT if row.makespan_s is not None else GUIDE,
        )
    ax.axvline(comparison.lower_bound_s, color=TEXT, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
    ax.set_xlim(0, span)
    ax.set_ylim(len(comparison.rows) - 0.4, -0.6)
    label_rows(ax, range(len(comparison.rows)), [plain(row.method) for row in comparison.rows])
    ax.grid(axis="x", color=IDLE, zorder=0)
    label_seconds(ax.xaxis, span, "step time")
    bound = f"lower bound {format_seconds(comparison.lower_bound_s)} (dashed)"
    entitle(ax, ": ".join(filter(None, (comparison.name, bound))))
    ax.set_xlabel(f"{ax.get_xlabel()}\n{_LEGEND}")
    return ax


def _label(comparison: Comparison, row: MethodResult) -> str:
    if row.makespan_s is None:
        return row.status
    speedup, gap = comparison.speedup(row), comparison.gap(row) or 0.0
    faster = "" if speedup is None else f"  {speedup:.2f}×"
    distance = "optimal" if row.status == "optimal" else f"gap {100 * gap:.2g} %"
    return f"{format_seconds(row.makespan_s)}{faster}  {distance}"
