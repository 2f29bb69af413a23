"""Speedup over the number of devices: data parallelism alone, with model parallelism, and the best of all."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dlplacer.planning.hybrid.hybrid_plan import HybridPlan, Strategy
from dlplacer.report.plot.style import GUIDE, IDLE, TEXT, axes_or_new, device_colors, entitle

_SHOWN = 10


def plot_hybrid(plan: HybridPlan, ax: Axes | None = None) -> Axes:
    """Speedup over one device against the devices in use, both axes logarithmic; returns the Axes, without units.

    As the paper's figures 3 and 5: a line for data parallelism alone and one per model-parallel degree, each with the
    exact number of devices. The dashed line is the best with at most so many, the dotted vertical one the first number
    of devices at which a hybrid beats data parallelism on as many.
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
    # Above the others: where it lies on one of them, that one shows between the dashes.
    dashed: dict[str, Any] = {"color": TEXT, "linewidth": 1.4, "linestyle": (0, (4, 3)), "zorder": 4}
    ax.plot(*zip(*best, strict=True), label="best, idle devices allowed", **dashed)
    if plan.first_win is not None:
        ax.axvline(plan.first_win, color=GUIDE, linewidth=1, linestyle=":")
        note = f"hybrid wins from {plan.first_win}"
        right = plan.first_win > len(plan.budgets) ** 0.5
        ax.annotate(
            note,
            (plan.first_win, 0.02),
            xytext=(-4 if right else 4, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if right else "left",
            fontsize=8,
            color=GUIDE,
        )
    _label(ax, plan)
    return ax


def _known(plan: HybridPlan, points: Sequence[tuple[int, Strategy | None]]) -> list[tuple[int, float]]:
    return [(devices, plan.relative(strategy)) for devices, strategy in points if strategy is not None]


def _label(ax: Axes, plan: HybridPlan) -> None:
    most = len(plan.budgets)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks = [1 << power for power in range(most.bit_length())]
    ax.xaxis.set_major_locator(FixedLocator(ticks if len(ticks) <= _SHOWN else ticks[:: -(-len(ticks) // _SHOWN)]))
    ax.xaxis.set_minor_locator(NullLocator())
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("devices")
    ax.set_ylabel(plan.chart_label)
    ax.grid(color=IDLE, zorder=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    entitle(ax, plan.name or "time to converge")
