"""Layers over devices: a bar of memory for each, and which layers it holds."""

from matplotlib.axes import Axes

from dlplacer.core.units import format_seconds
from dlplacer.planning.fit.fit import Fit
from dlplacer.report.plot.style import IDLE, PHASE, TRANSFER, axes_or_new, entitle, label_bytes, label_rows, plain

_HEIGHT = 0.62
_PARTS = (("weights", PHASE["forward"]), ("cache", PHASE["backward"]), ("vectors", TRANSFER), ("reserve", PHASE[None]))


def plot_fit(found: Fit, ax: Axes | None = None) -> Axes:
    """A row per device as long as its memory, with weights, cache and reserve stacked; returns the Axes, in bytes."""
    ax = axes_or_new(ax, (10.0, 1.9 + 0.75 * len(found.plan.topology.devices)))
    shares = {share.device: share for share in found.shares}
    devices = found.plan.topology.devices
    longest = 1.0
    for row, device in enumerate(devices):
        share = shares.get(device.id)
        reserved = (float(device.meta.get("working_bytes", 0)), float(device.meta.get("reserve_bytes", 0)))
        held = (0, 0) if share is None else (share.weight_bytes, share.cache_bytes)
        sizes = [float(held[0]), float(held[1]), *reserved]
        capacity = float(device.meta.get("capacity_bytes") or sum(sizes))
        longest = max(longest, capacity)
        ax.barh(row, capacity, height=_HEIGHT, color=IDLE, zorder=1)
        left = 0.0
        for (name, color), size in zip(_PARTS, sizes, strict=True):
            ax.barh(row, size, left=left, height=_HEIGHT, color=color, zorder=2, label=name if row == 0 else None)
            left += size
        told = "unused" if share is None else f"{len(share.layers)} layers, {format_seconds(share.time_s)}"
        ax.text(capacity, row - _HEIGHT / 2 - 0.04, told, ha="right", va="bottom", fontsize=8)
    label_rows(ax, range(len(devices)), [plain(f"{device.id} {device.type}") for device in devices])
    ax.set_ylim(len(devices) - 0.4, -0.8)
    ax.set_xlim(0, longest)
    label_bytes(ax.xaxis, longest, "memory")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=4, frameon=False)
    speed = f"{found.tokens_per_s:.3g} tokens/s, context {found.serving.context}"
    entitle(ax, f"{plain(found.plan.graph.name)}: {speed}", f"{found.binds} binds; {found.status}")
    return ax
