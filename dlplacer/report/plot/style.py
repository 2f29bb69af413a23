"""The look of all pictures: axes and colours."""

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter

_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_TITLE_POINTS = 10
# Share of the figure's width; the names of rows are left of the title.
_TITLE_SHARE = 0.75


def axes_or_new(ax: Any, size: tuple[float, float], rows: int = 1) -> Axes:
    """`ax` itself if it is Axes; else new Axes in the figure `ax`, or in a new pyplot figure if `ax` is None.

    `size` is the size of the figure in inches. With several `rows`, the new Axes are an array.
    """
    if isinstance(ax, Figure):
        ax.set_size_inches(size)
        ax = ax.subplots(rows)
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(rows, figsize=size, layout="constrained")
    axes: Axes = ax
    return axes


def inches(ax: Axes) -> tuple[float, float]:
    """The current width and height of the Axes; a layout engine may still change them slightly."""
    return ax.bbox.width / ax.figure.dpi, ax.bbox.height / ax.figure.dpi


def label_rows(ax: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Name the rows of a bar picture, and draw only the lower side of its frame."""
    ax.set_yticks(places, names)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def label_seconds(axis: Axis, span_s: float, name: str) -> None:
    """Label an axis of seconds in the largest of s, ms, us and ns in which the span is at least 2."""
    unit, factor = next(((unit, factor) for unit, factor in _TIMES if span_s >= 2 * factor), _TIMES[-1])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:.6g}"))
    axis.set_label_text(f"{name} ({unit})")


@cache
def text_points(text: str, size: float) -> float:
    """The width of a text in points, in the font that pictures use."""
    if not text.strip():
        return 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        return float(TextPath((0, 0), text, size=size).get_extents().width)


def plain(text: str, limit: int = 32) -> str:
    """A name that matplotlib draws as plain text, without control characters; a long one loses its middle part."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    if len(shown) > limit:
        shown = f"{shown[: limit // 2]}…{shown[limit // 2 + 1 - limit :]}"
    return shown.replace("$", r"\$")


def fitting(text: str, points: float, size: float, limit: int = 100) -> str:
    """Like `plain`, shortened in the middle to fit a width in points."""
    for length in range(min(limit, len(text)), 8, -4):
        shown = plain(text, length)
        if text_points(shown, size) <= points:
            return shown
    return plain(text, 8)


def entitle(ax: Axes, first: str, *further: str) -> None:
    """Set a title at the left, with its first line shortened to fit into the figure."""
    room = 72 * _TITLE_SHARE * ax.figure.bbox.width / ax.figure.dpi
    ax.set_title("\n".join((fitting(first, room, _TITLE_POINTS), *further)), loc="left", fontsize=_TITLE_POINTS)


PHASE = {"forward": "#4c78a8", "backward": "#f2a154", "optimizer": "#54a24b", None: "#9aa0a6"}
"""Phase of an op → colour."""

TRANSFER = "#7d7a92"
CRITICAL = "#c1121f"
CROSSING = "#c1121f"
IDLE = "#eef0f3"
GUIDE = "#8a8f98"
TEXT = "#22262b"

_DEVICES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d31", "#5d4a9c", "#a6ba3a")
_SPECTRUM = "turbo"


def device_colors(devices: Iterable[str]) -> dict[str, str]:
    """Device → colour; up to eight devices stay distinct for colour-blind readers too."""
    names = list(devices)
    if len(names) <= len(_DEVICES):
        return dict(zip(names, _DEVICES, strict=False))
    return dict(zip(names, _spread(len(names)), strict=True))


def block_colors(blocks: Iterable[str]) -> dict[str, str]:
    """Block of the model → colour: from blue at its input to red at its output, alternating light and dark."""
    names = [name for name in blocks if name]
    shades = _spread(len(names))
    return {"": PHASE[None]} | dict(zip(names, shades, strict=True))


def ink_on(color: str) -> str:
    """Black or white, whichever is easier to read on the colour."""
    red, green, blue = to_rgb(color)
    return TEXT if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def _spread(count: int) -> list[str]:
    spectrum = matplotlib.colormaps[_SPECTRUM]
    shades = []
    for position in range(count):
        red, green, blue, _ = spectrum(0.06 + 0.88 * position / max(1, count - 1))
        factor = 0.72 if position % 2 else 1.0
        shades.append(to_hex((red * factor, green * factor, blue * factor)))
    return shades
