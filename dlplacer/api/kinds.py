"""Declarations of the public functions' parameters: a `Parameter` has a `Kind`, which checks values and reads texts."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from threading import Event
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, refuse, tuple_of
from dlplacer.core.units import parse_quantity


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a parameter takes: in Python a value or its text, on the command line its text.

    `take` checks and completes the value of a name, or raises InputError. `read` makes a value of a text, or raises
    ValueError. Options do without a `unit` at the end of a name.
    """

    take: Callable[[str, Any], Any]
    read: Callable[[str], Any] = str
    metavar: str | None = None
    unit: str = ""


def _of(accepted: str, *types: type) -> Callable[[str, Any], Any]:
    def take(name: str, value: Any) -> Any:
        # For Python True is the number 1.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise refuse("", name, value, accepted)
        return value

    return take


def _read_by(kind: Callable[[str], Any], accepted: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {accepted}") from None

    return read


def _share(text: str) -> float:
    return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)


def _quantity(dimension: str, kind: type = float) -> Callable[[str], Any]:
    return lambda text: kind(parse_quantity(text, dimension))


def _series(kind: type, accepted: str) -> Kind:
    """Series of texts or whole numbers; as a text, separated by commas."""

    def read(text: str) -> tuple[Any, ...]:
        found = tuple(kind(part) for part in text.replace(",", " ").split())
        if not found:
            raise ValueError
        return found

    return Kind(lambda name, value: tuple_of("", name, value, kind, accepted), _read_by(read, f"{accepted}, as a,b,c"))


def _alone_or_several(accepted: str, *types: type) -> Kind:
    """Values of some types, or one of them alone; a dict stays what it is."""

    def take(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return value
        return tuple_of("", name, [value] if isinstance(value, types) else value, types, accepted)

    return Kind(take)


def _table(read: Callable[[str], float]) -> Kind:
    """Whole numbers → numbers; as a text ``2=1.32,4=2.1``, on the command line several times."""

    def parsed(text: str) -> dict[int, float]:
        pairs = (part.partition("=") for part in text.split(","))
        return {int(count): read(value) for count, _, value in pairs}

    def take(name: str, value: Any) -> dict[int, float]:
        found: dict[int, float] = {}
        for table in value if isinstance(value, list) else [value]:
            expect("", name, table, Mapping, "a dict from devices to numbers")
            for count, figure in table.items():
                WHOLE.take(f"{name}: devices", count)
                _NUMBER(f"{name} of {count} devices", figure)
                if not figure > 0:
                    raise InputError(f"{name} says {figure:g} of {count} devices; give a positive number")
                if found.setdefault(count, figure) != figure:
                    raise InputError(f"{name} says {found[count]:g} and {figure:g} of {count} devices; drop one")
        return found

    return Kind(take, _read_by(parsed, "devices=number, as in 2=1.32"))


def written_file(text: str) -> Path:
    """The path of a file to write; raises ValueError for one that a command would fail to write after its work."""
    path = Path(text)
    folder = path.resolve().parent
    if not text:
        raise ValueError("the path is empty; name a file to write")
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {folder}; make it, or write elsewhere")
    if not os.access(folder if path.is_file() or not path.exists() else path, os.W_OK):
        raise ValueError(f"cannot write {path}: no permission in {folder}; write elsewhere")
    return path


def _picture_file(text: str) -> Path:
    from dlplacer.report.plot.pictures import picture_format

    path = written_file(text)
    try:
        picture_format(path)
    except InputError as error:
        raise ValueError(str(error)) from error
    return path


_PATH, _NUMBER = _of("the path of a file", str, PathLike), _of("a number", Real)
TEXT = Kind(_of("a text", str))
WHOLE = Kind(_of("a whole number", Integral), _read_by(int, "a whole number"), "N")
NUMBER = Kind(_NUMBER, _read_by(float, "a number"))
SHARE = Kind(_NUMBER, _read_by(_share, "a share; write for example 0.01 or 1%"))
FLAG = Kind(_of("True or False", bool))
SECONDS = Kind(_NUMBER, _quantity("seconds"), "TIME", "_s")
BYTES = Kind(_NUMBER, _quantity("bytes", int), "SIZE", "_bytes")
RATE = Kind(_NUMBER, _quantity("bytes_per_s"), "RATE")
FILES, TEXTS = _alone_or_several("paths of files", str, PathLike), _alone_or_several("texts", str)
NAMES, WHOLES = _series(str, "names"), _series(int, "whole numbers")
FIGURES, TIMES = _table(float), _table(SECONDS.read)
CALL = Kind(_of("a function", Callable))  # type: ignore[arg-type]
STOP = Kind(_of("a threading.Event or None", Event))
READ, WRITTEN, PICTURE = Kind(_PATH, Path, "FILE"), Kind(_PATH, written_file, "F"), Kind(_PATH, _picture_file, "F")
ANY = Kind(lambda name, value: value)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of public functions, and the option that sets it.

    `name` is that of the function's parameter; behind the function's name and a dot, if it is declared for that one
    alone. `help` tells the effect of the option with its default, and `doc` that of the parameter in Python if it
    differs; without help no option sets the parameter. `option` is its spelling, if it is not the name with dashes;
    without dashes it is positional. With `repeat` it may be given several times. `settings` are further arguments for
    `argparse`, and `group` is the title above the option in help texts.
    """

    name: str
    help: str = ""
    kind: Kind = TEXT
    metavar: str | None = None
    option: str | tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    repeat: bool = False
    settings: tuple[tuple[str, Any], ...] = ()
    doc: str = ""
    group: str = ""

    @property
    def dest(self) -> str:
        """The name in its function."""
        return self.name.rpartition(".")[2]

    @property
    def spellings(self) -> tuple[str, ...]:
        """The option as one types it."""
        given = (self.option,) if isinstance(self.option, str) else self.option
        return given if any(given) else (f"--{self.dest.removesuffix(self.kind.unit).replace('_', '-')}",)

    def taken(self, value: Any) -> Any:
        """A value given in Python, checked and completed; raises InputError."""
        if isinstance(value, str):
            try:
                value = self.kind.read(value)
            except ValueError as error:
                raise InputError(f"{self.dest}: {error}") from error
        value = self.kind.take(self.dest, value)
        wrong = self._wrong(value)
        if wrong:
            raise InputError(f"{self.dest} is {value!r}; {wrong}")
        return value

    def read(self, text: str) -> Any:
        """The value of an option's text; raises ValueError."""
        value = self.kind.read(text)
        wrong = self._wrong(value)
        if wrong:
            raise ValueError(f"{text!r} is given; {wrong}")
        return value

    def _wrong(self, value: Any) -> str:
        """The rule that a value breaks, or an empty text."""
        for one in value if isinstance(value, tuple) else (value,):
            if self.choices and one not in self.choices:
                return f"use {'some' if value is not one else 'one'} of {', '.join(self.choices)}"
            if self.least is not None and not one >= self.least:
                return f"it must be at least {self.least:g}"
            if self.above is not None and not one > self.above:
                return f"it must be above {self.above:g}"
        return ""
