"""The pictures and their files; the table is read without loading matplotlib.

A picture is a module of this folder with two functions, ``plot_NAME(subject, ax=None)`` and ``NAME_size(subject)``, and
a row in `PICTURES`: the command line and `save_picture` read them from there.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 110
# matplotlib writes the time of drawing into SVG and PDF; without it the same plan gives the same bytes.
_DATES: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: the name of its module, the kind of value that it shows, its option of commands, and its Axes."""

    name: str
    subject: str
    help: str
    option: str = "picture"
    rows: int = 1

    @property
    def plot(self) -> "Callable[..., Axes]":
        """``plot_NAME``."""
        function: Callable[..., Axes] = getattr(self._module, f"plot_{self.name}")
        return function

    def size(self, subject: Any) -> tuple[float, float]:
        """Width and height in inches at which the picture of a subject is readable."""
        inches: tuple[float, float] = getattr(self._module, f"{self.name}_size")(subject)
        return inches

    @property
    def _module(self) -> Any:
        return import_module(f"dlplacer.report.plot.{self.name}")


PICTURES = (
    Picture("gantt", "plan", "devices and links over time, as .png, .svg or .pdf", "gantt"),
    Picture("placement", "plan", "the graph coloured by device", "placement"),
    Picture("memory", "plan", "memory over time", "memory"),
    Picture("comparison", "comparison", "the step times as bars, as .png, .svg or .pdf"),
    Picture("fit", "fit", "layers and memory of each device, as .png, .svg or .pdf"),
    Picture("hybrid", "hybrid plan", "speedup over devices, as .png, .svg or .pdf"),
    Picture("pipeline", "pipeline plan", "the schedule as .png, .svg or .pdf"),
    Picture("run", "run", "the measured step beneath the predicted one, as .png, .svg or .pdf", "gantt", rows=2),
    Picture("topology", "topology", "picture to write, as .png, .svg or .pdf"),
)


def pictures_of(subject: str) -> tuple[Picture, ...]:
    """The pictures that show a subject."""
    return tuple(picture for picture in PICTURES if picture.subject == subject)


def picture_format(path: str | PathLike[str]) -> str:
    """The format that the suffix of a picture's name asks for; raises InputError if there is no such format."""
    expect("", "path", path, (str, PathLike), "the path of a picture to write")
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in _DATES:
        raise InputError(f"{path} ends in {suffix!r}, which is no picture format here; use .png, .svg or .pdf")
    return suffix


def save_picture(path: str | PathLike[str], plot_function: Callable[..., Any], subject: Any, **options: Any) -> None:
    """Draw a subject with the plot function of a picture, and write it; the suffix chooses the format.

    `options` go to the plot function. The same subject gives the same bytes, and no pyplot figure is made.

    Raises InputError if the suffix is no picture format, or the file cannot be written.
    """
    picture = next(each for each in PICTURES if f"plot_{each.name}" == plot_function.__name__)
    suffix, stream = picture_format(path), BytesIO()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from dlplacer.files.text import write_bytes

    figure = Figure(figsize=picture.size(subject), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(picture.rows)
    plot_function(subject, axes if picture.rows == 1 else tuple(axes), **options)
    with matplotlib.rc_context({"svg.hashsalt": picture.name}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; there is nothing that the caller could do about it.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(stream, format=suffix, dpi=DPI, metadata=_DATES[suffix])
    write_bytes(Path(path), stream.getvalue())
