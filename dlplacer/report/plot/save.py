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
from dlplacer.report.plot.comparison import comparison_size, plot_comparison
from dlplacer.report.plot.gantt import gantt_size, plot_gantt
from dlplacer.report.plot.hybrid import hybrid_size, plot_hybrid
from dlplacer.report.plot.memory import memory_size, plot_memory
from dlplacer.report.plot.pipeline import pipeline_size, plot_pipeline
from dlplacer.report.plot.placement import placement_size, plot_placement
from dlplacer.report.plot.style.formats import picture_format
from dlplacer.report.plot.topology import plot_topology, topology_size

DPI = 110
_DATES = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
_SIZES: dict[Callable[..., Axes], Callable[[Any], tuple[float, float]]] = {
    plot_comparison: comparison_size,
    plot_gantt: gantt_size,
    plot_hybrid: hybrid_size,
    plot_memory: memory_size,
    plot_pipeline: pipeline_size,
    plot_placement: placement_size,
    plot_topology: topology_size,
}


def recommended_size(plot_function: Callable[..., Axes], subject: Any) -> tuple[float, float]:
    """Width and height in inches at which a picture of it is readable."""
    size = _SIZES.get(plot_function)
    return (12.0, 7.0) if size is None else size(subject)


def save_picture(path: str | PathLike[str], plot_function: Callable[..., Axes], subject: Any, **options: Any) -> None:
    """Draw a plan or a topology with a plot function and write the picture; the suffix chooses the format.

    Parameters
    ----------
    options
        Passed on to the plot function.

    Raises
    ------
    InputError
        If the suffix is not one of `dlplacer.report.plot.style.formats.FORMATS`, or the file cannot be written.
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
