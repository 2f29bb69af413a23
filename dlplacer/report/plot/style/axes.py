"""Axes: made, measured and labelled in fitting units."""

import warnings
from functools import cache

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, MaxNLocator

_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_TITLE_POINTS = 10
# Of the figure's width: left of the title are the names of rows.
_TITLE_SHARE = 0.75
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def axes_or_new(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The Axes given, or those of a new pyplot figure of this size in inches, which a notebook displays."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    _, created = pyplot.subplots(figsize=size, layout="constrained")
    return created


def inches(ax: Axes) -> tuple[float, float]:
    """Width and height of the Axes as they are now; a layout engine may still change them a little."""
    return ax.bbox.width / ax.figure.dpi, ax.bbox.height / ax.figure.dpi


def label_seconds(axis: Axis, span_s: float, name: str) -> None:
    """Data in seconds, ticks in the largest of s, ms, us and ns in which the span is at least 2."""
    unit, factor = next(((unit, factor) for unit, factor in _TIMES if span_s >= 2 * factor), _TIMES[-1])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:.6g}"))
    axis.set_label_text(f"{name} ({unit})")


def label_bytes(axis: Axis, span_bytes: float, name: str) -> None:
    """Data in bytes, ticks at round numbers of the largest of TiB, GiB, MiB, KiB and B that fits into the span."""
    unit, factor = next(((unit, factor) for unit, factor in _SIZES if span_bytes >= factor), _SIZES[-1])
    ticks = MaxNLocator(nbins=7, steps=[1, 2, 5, 10]).tick_values(0, span_bytes / factor)
    axis.set_ticks([tick * factor for tick in ticks if tick * factor <= span_bytes])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:.6g}"))
    axis.set_label_text(f"{name} ({unit})")


@cache
def text_points(text: str, size: float) -> float:
    """How wide a text is in points, in the font that pictures use."""
    if not text.strip():
        return 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        return float(TextPath((0, 0), text, size=size).get_extents().width)


def plain(text: str, limit: int = 32) -> str:
    """A name as matplotlib may draw it: no mathematics, no control characters, the middle of a long one left out."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    if len(shown) > limit:
        shown = f"{shown[: limit // 2]}…{shown[limit // 2 + 1 - limit :]}"
    return shown.replace("$", r"\$")


def fitting(text: str, points: float, size: float, limit: int = 100) -> str:
    """As `plain`, with as much of the middle left out as a width in points asks for."""
    for length in range(min(limit, len(text)), 8, -4):
        shown = plain(text, length)
        if text_points(shown, size) <= points:
            return shown
    return plain(text, 8)


def entitle(ax: Axes, first: str, *further: str) -> None:
    """A title at the left, its first line cut to fit into the figure."""
    room = 72 * _TITLE_SHARE * ax.figure.bbox.width / ax.figure.dpi
    ax.set_title("\n".join((fitting(first, room, _TITLE_POINTS), *further)), loc="left", fontsize=_TITLE_POINTS)
