"""The pictures and their formats, which are read without loading matplotlib.

A picture is a module of this folder with two functions, ``plot_NAME(subject, ax=None)`` and ``NAME_size(subject)``, and
a row in `PICTURES`: the command line and `save_picture` read them from there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Attributes
    ----------
    name
        Name of its module, which its functions also bear.
    subject
        The kind of value that it shows; a command with such a value offers the picture.
    help
        Its description on the command line.
    """

    name: str
    subject: str
    help: str

    @property
    def option(self) -> str:
        """The option that asks for it: a plan has several pictures, anything else has one."""
        return self.name if self.subject == "plan" else "picture"

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
        # By name and on demand: the command line reads this table, and must not load matplotlib for it.
        return import_module(f"dlplacer.report.plot.{self.name}")


PICTURES = (
    Picture("gantt", "plan", "devices and links over time, as .png, .svg or .pdf"),
    Picture("placement", "plan", "the graph coloured by device"),
    Picture("memory", "plan", "memory over time"),
    Picture("comparison", "comparison", "the step times as bars, as .png, .svg or .pdf"),
    Picture("fit", "fit", "layers and memory of each device, as .png, .svg or .pdf"),
    Picture("hybrid", "hybrid plan", "speedup over devices, as .png, .svg or .pdf"),
    Picture("pipeline", "pipeline plan", "the schedule as .png, .svg or .pdf"),
    Picture("topology", "topology", "picture to write, as .png, .svg or .pdf"),
)


def pictures_of(subject: str) -> tuple[Picture, ...]:
    """The pictures that show a subject."""
    return tuple(picture for picture in PICTURES if picture.subject == subject)


def picture_format(path: str | PathLike[str]) -> str:
    """The format that the suffix of a picture's name asks for; raises InputError if it is not one of `FORMATS`."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise InputError(f"{path} ends in {suffix!r}, which is no picture format here; use .png, .svg or .pdf")
    return suffix
