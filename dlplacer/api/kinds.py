"""Declarations of the public functions' parameters: a `Parameter` has a `Kind`, which reads its values and texts."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from threading import Event
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.expect import brief, shown
from dlplacer.core.units import parse_quantity

Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a parameter takes, in Python as values or their texts, on the command line as texts.

    `read` checks and completes one, or raises ValueError or InputError. Options do without a `unit` at the end of a
    name.
    """

    read: Read
    metavar: str | None = None
    unit: str = ""


def _of(accepted: str, *types: type) -> Read:
    def read(value: Any) -> Any:
        # For Python True is the number 1.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"{brief(value)} is given; it must be {accepted}")
        return value

    return read


def _number(dimension: str, whole: bool = False) -> Read:
    check = _of("a whole number", Integral) if whole else _of("a number", Real)

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = parse_quantity(value, dimension)
        value = check(int(value) if whole and isinstance(value, float) and value.is_integer() else value)
        if abs(value) > sys.float_info.max:
            raise ValueError(f"{shown(value)} is too large")
        return value

    return read


def _series(accepted: str, *types: type, entry: Read | None = None) -> Read:
    """Series of values; a text is split at commas with `entry` to read its parts, and else one value, as any alone is.

    A dict that may stand for a series of texts stays one.
    """

    def read(value: Any) -> Any:
        if isinstance(value, str) and entry is not None:
            value = value.replace(",", " ").split() or [""]
        elif isinstance(value, types) and entry is None:
            value = [value]
        elif isinstance(value, Mapping) and entry is None:
            return value
        try:
            # A 0-dimensional array says that it can be iterated over.
            parts = None if isinstance(value, (str, bytes, Mapping)) else tuple(value)
        except TypeError:
            parts = None
        if parts is None:
            raise ValueError(f"{brief(value)} is given; it must be a tuple of {accepted}")
        entries = tuple(map(entry or _of(f"one of {accepted}", *types), parts))
        if "" in entries:
            raise ValueError(f"an empty text is given; it must be {accepted}, separated by commas")
        return entries

    return read


def _table(figure: Read) -> Read:
    """Whole numbers → numbers; as a text ``2=1.32,4=2.1``, on the command line several times."""

    def read(value: Any) -> dict[int, float]:
        found: dict[int, float] = {}
        for table in value if isinstance(value, list) else [value]:
            if isinstance(table, str):
                table = dict(part.partition("=")[::2] for part in table.split(","))
            for count, number in _of("a dict from devices to numbers, or a text as 2=1.32", Mapping)(table).items():
                try:
                    devices, known = _WHOLE(count), figure(number)
                except ValueError as error:
                    raise ValueError(f"{count}={number} is given: {error}") from None
                if not known > 0:
                    raise ValueError(f"{known:g} is given for {devices} devices; it must be positive")
                if found.setdefault(devices, known) != known:
                    raise ValueError(f"{found[devices]:g} and {known:g} are given for {devices} devices; drop one")
        return found

    return read


def written_file(path: Any) -> Path:
    """The path of a file to write; raises ValueError for one that a command would fail to write after its work."""
    found = Path(_PATH(path))
    folder = found.resolve().parent
    try:
        if found.is_dir():
            raise ValueError(f"cannot write {found}: it is a folder; name a file in it")
        if not folder.is_dir():
            raise ValueError(f"cannot write {found}: there is no folder {folder}; make it, or write elsewhere")
        if not os.access(folder if found.is_file() or not found.exists() else found, os.W_OK):
            raise ValueError(f"cannot write {found}: no permission in {folder}; write elsewhere")
    except OSError as error:
        raise ValueError(f"cannot write {shown(str(found))}: {error.strerror}; write elsewhere") from error
    return found


def _picture_file(path: Any) -> Path:
    from dlplacer.report.plot.pictures import picture_format

    found = written_file(path)
    picture_format(found)
    return found


_PATH = _of("the path of a file", str, PathLike)
_TEXT, _WHOLE = _of("a text", str), _number("number", whole=True)
KINDS = {
    "any": Kind(lambda value: value),
    "text": Kind(_TEXT),
    "word": Kind(_TEXT),
    "flag": Kind(_of("True or False", bool)),
    "whole": Kind(_WHOLE, "N"),
    "number": Kind(_number("number")),
    "share": Kind(_number("share")),
    "seconds": Kind(_number("seconds"), "TIME", "_s"),
    "bytes": Kind(_number("bytes", whole=True), "SIZE", "_bytes"),
    "rate": Kind(_number("bytes_per_s"), "RATE"),
    "names": Kind(_series("names", entry=_TEXT)),
    "wholes": Kind(_series("whole numbers", entry=_WHOLE)),
    "texts": Kind(_series("texts", str)),
    "files": Kind(_series("paths of files", str, PathLike)),
    "figures": Kind(_table(_number("number"))),
    "times": Kind(_table(_number("seconds"))),
    "read": Kind(lambda path: Path(_PATH(path)), "FILE"),
    "written": Kind(written_file, "F"),
    "picture": Kind(_picture_file, "F"),
    "table": Kind(_of("a dict", Mapping)),
    "call": Kind(_of("a function", Callable)),  # type: ignore[arg-type]
    "stop": Kind(_of("a threading.Event or None", Event)),
}
"""Name in declarations → kind."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of public functions, and the option that sets it.

    `name` is that of the function's parameter; behind the function's name and a dot, if it is declared for that one
    alone. `help` tells the effect of the option with its default, and `doc` that of the parameter in Python if it
    differs; without help no option sets the parameter. `option` are its spellings, if it is not the name with dashes;
    without dashes it is positional. With `repeat` it may be given several times. `settings` are further arguments for
    `argparse`, and `group` is the title above the option in help texts.
    """

    name: str
    help: str = ""
    kind: Kind = KINDS["text"]
    metavar: str | None = None
    option: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    repeat: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""
    group: str = ""

    @property
    def dest(self) -> str:
        """The name in its function."""
        return self.name.rpartition(".")[2]

    @property
    def spellings(self) -> tuple[str, ...]:
        """The option as one types it."""
        return self.option or (f"--{self.dest.removesuffix(self.kind.unit).replace('_', '-')}",)

    def read(self, value: Any) -> Any:
        """A value or its text, checked and completed; raises ValueError or InputError."""
        value = self.kind.read(value)
        for one in value if isinstance(value, tuple) else (value,):
            if self.choices and one not in self.choices:
                raise ValueError(f"{shown(one)} is given; it must be one of {', '.join(self.choices)}")
            if self.least is not None and not one >= self.least:
                raise ValueError(f"{shown(one)} is given; it must be at least {self.least:g}")
            if self.above is not None and not one > self.above:
                raise ValueError(f"{shown(one)} is given; it must be above {self.above:g}")
        return value

    def taken(self, value: Any) -> Any:
        """As `read`, for an argument in Python: raises InputError, which names the parameter."""
        try:
            return self.read(value)
        except (ValueError, InputError) as error:
            raise InputError(f"{self.dest}: {error}") from error
