"""The table of pictures, and functions that write their files; importing it loads no matplotlib.

A picture is a function ``plot_NAME(subject, ax=None)`` of this folder and a row in `PICTURES`, which the command line
reads. The function draws on `ax`, by default on new Axes of a size that suits the subject.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect

DPI = 110
# matplotlib writes the time of drawing into SVG and PDF; without that time, the same plan gives the same bytes.
_DATES: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: its name, the kind of value that it shows, and its command option."""

    name: str
    subject: str
    help: str
    option: str = "picture"


PICTURES = (
    Picture("gantt", "plan", "devices and links over time, as .png, .svg or .pdf", "gantt"),
    Picture("placement", "plan", "the graph coloured by device", "placement"),
    Picture("memory", "plan", "memory over time", "memory"),
    Picture("fit", "fit", "layers and memory of each device, as .png, .svg or .pdf"),
    Picture("hybrid", "hybrid plan", "speedup by number of devices, as .png, .svg or .pdf"),
    Picture("pipeline", "pipeline plan", "the schedule as .png, .svg or .pdf"),
    Picture("run", "run", "the measured step beneath the predicted one, as .png, .svg or .pdf", "gantt"),
    Picture("topology", "topology", "picture to write, as .png, .svg or .pdf"),
)


def pictures_of(subject: str) -> tuple[Picture, ...]:
    """The pictures that show a subject."""
    return tuple(picture for picture in PICTURES if picture.subject == subject)


def picture_format(path: str | PathLike[str]) -> str:
    """The picture format of a path's suffix; raises InputError if there is no such format."""
    expect("", "path", path, (str, PathLike), "the path of a picture to write")
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in _DATES:
        raise InputError(f"{path} ends in {suffix!r}, which is not a supported picture format; use .png, .svg or .pdf")
    return suffix


def save_picture(path: str | PathLike[str], plot_function: Callable[..., Any], subject: Any, **options: Any) -> None:
    """Draw a subject with a plot function and write the picture, in the format of the path's suffix.

    `options` are passed to the plot function. The same subject gives the same bytes, and no pyplot figure is made.

    Raises InputError if the suffix is not a picture format, or the file cannot be written.
    """
    suffix, stream = picture_format(path), BytesIO()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from dlplacer.files.text import write_bytes

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    plot_function(subject, figure, **options)
    with (
        matplotlib.rc_context({"svg.hashsalt": plot_function.__name__.removeprefix("plot_")}),
        warnings.catch_warnings(),
    ):
        # Characters that the font lacks are drawn as boxes; the caller can do nothing about it.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(stream, format=suffix, dpi=DPI, metadata=_DATES[suffix])
    write_bytes(Path(path), stream.getvalue())
