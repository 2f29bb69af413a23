"""The formats of pictures, known without loading matplotlib."""

from os import PathLike
from pathlib import Path

from dlplacer.core.errors import InputError

FORMATS = ("png", "svg", "pdf")


def picture_format(path: str | PathLike[str]) -> str:
    """The format that the suffix of a picture's name asks for.

    Raises
    ------
    InputError
        If it is not one of `FORMATS`.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise InputError(f"{path} ends in {suffix!r}, which is no picture format here; use .png, .svg or .pdf")
    return suffix
