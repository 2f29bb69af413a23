"""The schedule of a pipeline over time."""

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from dlplacer.plot.axes import axes_or_new, label_seconds, plain
from dlplacer.plot.colors import IDLE, PHASE, TEXT, block_colors, ink_on
from dlplacer.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.pipeline.plan import PipelinePlan

_HEIGHT = 0.8
_KIND_HEIGHT = {"F": 1.0, "B": 0.7, "I": 0.7, "W": 0.45}
_LEGEND = "tall: forward; lower: backward, low: for weights alone; grey: bubble"
_MOST_LABELS = 160


def pipeline_size(plan: "PipelinePlan") -> tuple[float, float]:
    """Inches, width and height, that suit `plot_pipeline`."""
    return 13.0, 1.6 + 0.62 * len(plan.devices)


def plot_pipeline(plan: "PipelinePlan", ax: Axes | None = None) -> Axes:
    """A row per device and a bar per pass, as long as it takes; returns the Axes, with seconds along x.

    The colour tells the micro-batch, the height what is done with it: forward, backward, backward for the weights
    alone. What is left grey in a row is the bubble.
    """
    ax = axes_or_new(ax, pipeline_size(plan))
    timeline = plan.timeline
    names = [str(number) for number in range(plan.micro_batches)]
    colors = block_colors(names)
    labelled = sum(map(len, timeline.ranks)) <= _MOST_LABELS
    for rank, spans in enumerate(timeline.ranks):
        ax.barh(rank, timeline.step_s, height=_HEIGHT, color=IDLE, zorder=1)
        for span in spans:
            color = colors[str(span.action.micro_batch)]
            height = _HEIGHT * _KIND_HEIGHT[span.action.kind]
            width = span.end_s - span.begin_s
            bottom = rank + _HEIGHT / 2 - height / 2
            ax.barh(bottom, width, left=span.begin_s, height=height, color=color, edgecolor="white", lw=0.4, zorder=2)
            if labelled and width > timeline.step_s / 60:
                middle = span.begin_s + width / 2
                ax.text(middle, bottom, str(span.action), ha="center", va="center", fontsize=7, color=ink_on(color))
        if timeline.update_s[rank]:
            begin_s = max((span.end_s for span in spans), default=0.0)
            ax.barh(rank, timeline.update_s[rank], left=begin_s, height=_HEIGHT, color=PHASE["optimizer"], zorder=2)
    ax.set_yticks(range(len(plan.devices)), [plain(name) for name in plan.devices])
    ax.set_ylim(len(plan.devices) - 0.4, -0.6)
    ax.set_xlim(0, timeline.step_s or 1.0)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    label_seconds(ax.xaxis, timeline.step_s or 1.0, "time")
    title = (
        f"{plan.name}: {plan.schedule}, {len(plan.stages)} stages, {plan.micro_batches} micro-batches: "
        f"{format_seconds(plan.step_s)} per step, bubble {100 * timeline.bubble:.1f} %"
    )
    ax.set_title(plain(title, 140), loc="left", fontsize=10)
    ax.annotate(_LEGEND, (1, 1.0), xycoords="axes fraction", ha="right", va="bottom", fontsize=7, color=TEXT)
    return ax
