"""The measured Gantt chart below the predicted one, on the same time axis."""

from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes

from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.report.link_use import waited_for
from dlplacer.report.plot.gantt import gantt_size, plot_gantt
from dlplacer.report.plot.style import GUIDE, axes_or_new

_SPAN = "from the start of the first op to the end of the last, without what the host does before and after"
_NOTE = "transfers that a device waited for: the producer has ended, the device is free, and the reader has not begun"


def plot_run(steps: tuple[Plan, Plan], axes: tuple[Axes, Axes] | None = None) -> tuple[Axes, Axes]:
    """Gantt charts of the predicted and of the measured step with the same time axis; returns their Axes.

    A recording holds no transfers: below the measured ops stand those that a device waited for, as `waited_for` finds
    them. Neither chart shows a critical path: cores also spend time on handing over tensors, which no bar represents.
    """
    predicted, measured = steps
    (width, above), (_, below) = map(gantt_size, steps)
    both: Any = axes_or_new(axes, (width, above + below), 2)
    longest_s = max(predicted.makespan_s, measured.makespan_s)
    shown = (
        predicted,
        measured
        if measured.transfers
        # They may overlap on a link, and hold all links of their route at once.
        else replace(
            measured,
            transfers=waited_for(predicted, measured),
            options=replace(predicted.options, contention="none", delay="cut-through"),
        ),
    )
    for plan, ax, name in zip(shown, both, ("predicted", "measured"), strict=True):
        plot_gantt(plan, ax, mark_path=False, until_s=longest_s)
        ax.set_title(
            f"{name}: {format_seconds(plan.makespan_s)}{_apart(plan, predicted)}", loc="left", fontweight="bold"
        )
    both[0].annotate(_SPAN, (1, 1), (0, 4), "axes fraction", "offset points", fontsize=7, color=GUIDE, ha="right")
    if shown[1].transfers and not measured.transfers:
        both[1].annotate(_NOTE, (0, 0), (2, 3), "axes fraction", "offset points", fontsize=7, color=GUIDE)
    return both[0], both[1]


def _apart(plan: Plan, predicted: Plan) -> str:
    """The difference of a step from its prediction, in words; an empty text for the predicted step."""
    if plan is predicted or not predicted.makespan_s:
        return ""
    percent = 100 * (plan.makespan_s / predicted.makespan_s - 1)
    return f", {abs(percent):.1f} % {'longer' if percent > 0 else 'shorter'} than predicted"
