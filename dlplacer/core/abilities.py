"""Abilities of values that need packages above core: saving themselves, and showing themselves in a notebook.

`PROVIDERS`, filled in `dlplacer/__init__.py`, names the functions that provide them; core imports one when it needs it.
"""

from os import PathLike
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

PROVIDERS: dict[str, str] = {}
"""Ability → ``module:function``."""


class Shown:
    """A value that notebooks show, and that can be saved and turned into a pandas DataFrame."""

    __slots__ = ()

    def to_frame(self) -> "pandas.DataFrame":
        """The main table of the value as a pandas DataFrame: times in seconds, gaps and speedups as ratios."""
        frame: pandas.DataFrame = resolve_name(PROVIDERS["table"])(self).to_frame()
        return frame

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the value atomically, in its file format or else as the JSON of `to_dict`, and return the path.

        Raises InputError if the file cannot be written.
        """
        written: Path = resolve_name(PROVIDERS["save"])(self, path)
        return written

    def _repr_html_(self) -> str:
        fragment: str = resolve_name(PROVIDERS["html"])(self)
        return fragment
