"""Abilities of values that need packages above core: saving themselves, and showing themselves in a notebook.

Core declares that a plan can be saved, but must not know the function that saves it. The root package knows every
package: `dlplacer/__init__.py` names the functions with `provide` when it is imported, before anything else of dlplacer
can be used. The functions themselves are imported when they are first needed.
"""

from collections.abc import Callable
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

_PROVIDERS: dict[str, str] = {}


def provide(**providers: str) -> None:
    """Name the functions behind the abilities: ability → ``module:function``."""
    _PROVIDERS.update(providers)


def provider(ability: str) -> Callable[..., Any]:
    """The function that has an ability."""
    module, _, name = _PROVIDERS[ability].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


class Shown:
    """A value that has a view and a file: notebooks show its figures and tables, frames and files hold them."""

    __slots__ = ()

    def to_frame(self) -> "pandas.DataFrame":
        """The main table of the value as a pandas DataFrame: times in seconds, gaps and speedups as ratios."""
        frame: pandas.DataFrame = provider("table")(self).to_frame()
        return frame

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the value, atomically, as a file that dlplacer reads, or as its figures in JSON; returns the path.

        Raises InputError if the file cannot be written.
        """
        written: Path = provider("save")(self, path)
        return written

    def _repr_html_(self) -> str:
        fragment: str = provider("html")(self)
        return fragment
