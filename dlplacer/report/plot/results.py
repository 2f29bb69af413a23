"""Pictures of layers assigned to devices, of hybrids by number of devices, and of pipelines over time."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from dlplacer.core.units import format_seconds
from dlplacer.planning.fit.fit import Fit
from dlplacer.planning.hybrid.hybrid_plan import HybridPlan, Strategy
from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
from dlplacer.report.plot.style import (
    GUIDE,
    IDLE,
    PHASE,
    TEXT,
    TRANSFER,
    axes_or_new,
    block_colors,
    device_colors,
    entitle,
    ink_on,
    label_rows,
    label_seconds,
    plain,
)

_BAR = 0.62
_PARTS = {"weights": PHASE["forward"], "cache": PHASE["backward"], "vectors": TRANSFER, "reserve": PHASE[None]}


def plot_fit(found: Fit, ax: Axes | None = None) -> Axes:
    """A bar per device as long as its memory, with weights, cache and reserve stacked; returns the Axes, in GiB."""
    ax = axes_or_new(ax, (10.0, 1.9 + 0.75 * len(found.plan.topology.devices)))
    shares = {share.device: share for share in found.shares}
    devices = found.plan.topology.devices
    longest = 0.0
    for row, device in enumerate(devices):
        share = shares.get(device.id)
        reserved = (float(device.meta.get("working_bytes", 0)), float(device.meta.get("reserve_bytes", 0)))
        held = (0, 0) if share is None else (share.weight_bytes, share.cache_bytes)
        sizes = [size / 2**30 for size in (*held, *reserved)]
        capacity = device.meta.get("capacity_bytes", 0) / 2**30 or sum(sizes)
        longest = max(longest, capacity)
        ax.barh(row, capacity, height=_BAR, color=IDLE, zorder=1)
        left = 0.0
        for (name, color), size in zip(_PARTS.items(), sizes, strict=True):
            ax.barh(row, size, left=left, height=_BAR, color=color, zorder=2, label=name if row == 0 else None)
            left += size
        told = "unused" if share is None else f"{len(share.layers)} layers, {format_seconds(share.time_s)}"
        ax.text(capacity, row - _BAR / 2 - 0.04, told, ha="right", va="bottom", fontsize=8)
    label_rows(ax, range(len(devices)), [plain(f"{device.id} {device.type}") for device in devices])
    ax.set_ylim(len(devices) - 0.4, -0.8)
    ax.set_xlim(0, longest or 1.0)
    ax.set_xlabel("memory (GiB)")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=4, frameon=False)
    speed = f"{found.tokens_per_s:.3g} tokens/s, context {found.serving.context}"
    entitle(ax, f"{plain(found.plan.graph.name)}: {speed}", f"{found.binds} binds; {found.status}")
    return ax


def plot_hybrid(plan: HybridPlan, ax: Axes | None = None) -> Axes:
    """Speedup over one device against the devices in use, both axes logarithmic; returns the Axes, without units.

    As in figures 3 and 5 of Pal et al. 2019, solid lines show data parallelism alone and each model-parallel degree;
    these strategies use all the devices. The dashed line is the best strategy that may leave devices idle; the dotted
    vertical line is the first number of devices on which a hybrid beats data parallelism.
    """
    ax = axes_or_new(ax, (9.0, 5.5))
    lines = plan.lines(plan.budgets)
    colors = device_colors(lines)
    marker = "o" if len(plan.budgets) <= 64 else None
    for name, points in lines.items():
        known = _known(plan, points)
        if known:
            ax.plot(*zip(*known, strict=True), color=colors[name], label=name, marker=marker, markersize=3, zorder=3)
    best = _known(plan, [(each.devices, each.best) for each in plan.budgets])
    # Above the others, so that a line under it shows between the dashes.
    dashed: dict[str, Any] = {"color": TEXT, "linewidth": 1.4, "linestyle": (0, (4, 3)), "zorder": 4}
    ax.plot(*zip(*best, strict=True), label="best, idle devices allowed", **dashed)
    if plan.first_win is not None:
        label = f"hybrid wins from {plan.first_win}"
        ax.axvline(plan.first_win, color=GUIDE, linewidth=1, linestyle=":", label=label)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("devices")
    ax.set_ylabel(plan.chart_label)
    ax.grid(color=IDLE, zorder=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    entitle(ax, plan.name or "time to converge")
    return ax


def _known(plan: HybridPlan, points: Sequence[tuple[int, Strategy | None]]) -> list[tuple[int, float]]:
    return [(devices, plan.relative(strategy)) for devices, strategy in points if strategy is not None]


_HIGH = 0.8
_KIND_HEIGHT = {"F": 1.0, "B": 0.7, "I": 0.7, "W": 0.45}
_MEANING = {"F": "F forward", "B": "B backward", "I": "I backward for the inputs", "W": "W backward for the weights"}
_MOST_LABELS = 160
_OUTLINED = 400
_MOST_COLORS_NAMED = 16


def plot_pipeline(plan: PipelinePlan, ax: Axes | None = None) -> Axes:
    """A row per device, with a bar per pass as long as its time; returns the Axes, with seconds along x.

    The colour encodes the micro-batch; the height encodes the pass: forward, backward, or backward for the weights
    alone. The grey remainder of a row is the bubble.
    """
    ax = axes_or_new(ax, (14.0, 1.8 + 0.62 * max(len(plan.devices), min(plan.micro_batches, _MOST_COLORS_NAMED) / 3)))
    timeline = plan.timeline
    names = [str(number) for number in range(plan.micro_batches)]
    colors = block_colors(names)
    labelled = sum(map(len, timeline.ranks)) <= _MOST_LABELS
    for rank, spans in enumerate(timeline.ranks):
        ax.barh(rank, timeline.step_s, height=_HIGH, color=IDLE, zorder=1)
        for span in (span for span in spans if span.end_s > span.begin_s):
            color = colors[str(span.action.micro_batch)]
            height = _HIGH * _KIND_HEIGHT[span.action.kind]
            width = span.end_s - span.begin_s
            bottom = rank + _HIGH / 2 - height / 2
            edge = "white" if width > timeline.step_s / _OUTLINED else color
            ax.barh(bottom, width, left=span.begin_s, height=height, color=color, edgecolor=edge, lw=0.4, zorder=2)
            if labelled and width > timeline.step_s / 60:
                middle = span.begin_s + width / 2
                ax.text(middle, bottom, str(span.action), ha="center", va="center", fontsize=7, color=ink_on(color))
        if timeline.update_s[rank]:
            begin_s = max((span.end_s for span in spans), default=0.0)
            ax.barh(rank, timeline.update_s[rank], left=begin_s, height=_HIGH, color=PHASE["optimizer"], zorder=2)
    label_rows(ax, range(len(plan.devices)), [plain(name) for name in plan.devices])
    ax.set_ylim(len(plan.devices) - 0.4, -0.6)
    ax.set_xlim(0, timeline.step_s or 1.0)
    label_seconds(ax.xaxis, timeline.step_s or 1.0, "time")
    counts = f"{len(plan.stages)} stages, {plan.micro_batches} micro-batches"
    figures = f"{format_seconds(plan.step_s)} per step, bubble {100 * timeline.bubble:.1f} %"
    entitle(ax, f"{plan.name}: {plan.schedule}, {counts}: {figures}")
    _add_legend(ax, plan, colors, labelled)
    return ax


def _add_legend(ax: Axes, plan: PipelinePlan, colors: Mapping[str, str], labelled: bool) -> None:
    """Add the micro-batches' colours right of the bars, and below the bars the meaning of labels and heights."""
    names = [str(number) for number in range(plan.micro_batches)]
    named = names if len(names) <= _MOST_COLORS_NAMED else [names[0], names[-1]]
    handles = [Patch(color=colors[name], label=f"micro-batch {name}") for name in named]
    if any(plan.timeline.update_s):
        handles.append(Patch(color=PHASE["optimizer"], label="optimizer"))
    handles.append(Patch(color=IDLE, label="bubble"))
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=8)
    kinds = {span.action.kind for spans in plan.timeline.ranks for span in spans if span.end_s > span.begin_s}
    passes = ", ".join(text for kind, text in _MEANING.items() if kind in kinds)
    labels = "a bar is labelled stage, pass, micro-batch; " if labelled else ""
    note = f"{labels}the lower a bar, the later the pass: {passes}"
    ax.set_xlabel(f"{ax.get_xlabel()}\n{note}")
