"""Pictures as files."""

import warnings
from collections.abc import Callable
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dlplacer.files.text import write_bytes
from dlplacer.report.plot.pictures import PICTURES, picture_format

DPI = 110
_OTHER_SIZE = (12.0, 7.0)
# matplotlib writes the time of drawing into SVG and PDF; without it the same plan gives the same bytes.
_DATES = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def recommended_size(plot_function: Callable[..., Axes], subject: Any) -> tuple[float, float]:
    """Width and height in inches at which a picture of it is readable."""
    name = plot_function.__name__.removeprefix("plot_")
    found = next((picture for picture in PICTURES if picture.name == name and picture.plot is plot_function), None)
    return _OTHER_SIZE if found is None else found.size(subject)


def save_picture(path: str | PathLike[str], plot_function: Callable[..., Axes], subject: Any, **options: Any) -> None:
    """Draw a plan or a topology with a plot function and write the picture; the suffix chooses the format.

    Parameters
    ----------
    options
        Passed on to the plot function.

    Raises
    ------
    InputError
        If the suffix is not one of `dlplacer.report.plot.pictures.FORMATS`, or the file cannot be written.
    """
    suffix = picture_format(path)
    write_bytes(Path(path), render(plot_function, subject, suffix, **options))


def render(plot_function: Callable[..., Axes], subject: Any, picture_format: str, **options: Any) -> bytes:
    """The picture as the bytes of a file; the same subject gives the same bytes. No pyplot figure is made."""
    figure = Figure(figsize=recommended_size(plot_function, subject), layout="constrained")
    FigureCanvasAgg(figure)
    plot_function(subject, figure.add_subplot(), **options)
    return figure_bytes(figure, picture_format, plot_function.__name__)


def figure_bytes(figure: Figure, picture_format: str, salt: str) -> bytes:
    """A figure as the bytes of a file; the same figure and salt give the same bytes."""
    stream = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; there is nothing that the caller could do about it.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(stream, format=picture_format, dpi=DPI, metadata=_DATES[picture_format])
    return stream.getvalue()
