"""Records: frozen dataclasses whose annotations define valid fields, in Python and in files.

`Record` checks a value where it is made. `dlplacer.files` has pydantic read files by the same annotations.
"""

import math
import numbers
import re
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from dlplacer.core.errors import InputError
from dlplacer.core.expect import brief_number, refuse, tuple_of
from dlplacer.core.units import parse_quantity

_NAMES: dict[Any, str] = {str: "a text", bool: "True or False", Mapping: "a dict"}
Check = Callable[[Any, str, Any], Any]
"""(record, name of a field, value) → the value to keep; raises InputError."""

NUMBER, TABLE = "<number>", "<table>"
"""Parts of pydantic's paths that stand for no field."""

_short = reprlib.Repr()
_short.maxlevel, _short.maxtuple, _short.maxdict, _short.maxstring, _short.maxother = 3, 4, 4, 80, 80


@dataclass(frozen=True)
class Number:
    """Annotation of a finite number; in files it may be a text with a unit of its dimension.

    Attributes
    ----------
    dimension
        A key of `dlplacer.core.units.UNITS`; empty for a plain number.
    at_least, at_most
        Limits of the value. With `positive`, 0 is none.
    whole
        Fractions are refused.
    named
        A table of such numbers by name may stand in place of one.
    """

    dimension: str = ""
    at_least: float = 0
    at_most: float = sys.float_info.max
    positive: bool = False
    whole: bool = False
    named: bool = False

    def check(self, owner: Any, name: str, value: Any) -> Any:
        if type(value) is not (int if self.whole else float):
            if self.named and isinstance(value, Mapping):
                for key, entry in value.items():
                    self.check(owner, f"{name}[{key}]", entry)
                return value
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise refuse(owner.label, name, value, "a whole number" if self.whole else "a number")
        if not (self.at_least <= value <= self.at_most and (value > 0 or not self.positive)):
            raise InputError(f"{owner.label}: {name} is {brief_number(value)}; it must be {self._range}")
        if self.whole and type(value) is not int:
            if value != int(value):
                raise refuse(owner.label, name, value, "a whole number")
            return int(value)
        return value

    @property
    def _range(self) -> str:
        if self.at_least < 0:
            return "finite"
        lowest = "positive" if self.positive else f"at least {self.at_least:g}"
        highest = "" if self.at_most == sys.float_info.max else f" and at most {self.at_most:g}"
        return f"finite and {lowest}{highest}"

    def of_file(self, value: Any) -> Any:
        """The number that a file gives; other values are left to pydantic."""
        if isinstance(value, str) and self.dimension:
            value = parse_quantity(value, self.dimension)
        # For Python true is the number 1; in a file it is a mistake.
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        try:
            number = float(value)
        except OverflowError:
            raise ValueError("the number is too large") from None
        if not math.isfinite(number):
            raise ValueError(f"{value} is not finite")
        return round(value) if self.whole and number == round(number) else value if self.whole else number

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schemas

        limits: dict[str, Any] = {"gt" if self.positive else "ge": self.at_least, "strict": True}
        if self.at_most != sys.float_info.max:
            limits["le"] = self.at_most
        kind = schemas.int_schema if self.whole else schemas.float_schema
        number = schemas.no_info_before_validator_function(self.of_file, kind(**limits))
        if not self.named:
            return number
        choices: dict[Any, Any] = {NUMBER: number, TABLE: schemas.dict_schema(schemas.str_schema(), number)}
        return schemas.tagged_union_schema(choices, lambda value: TABLE if isinstance(value, dict) else NUMBER)


@dataclass(frozen=True)
class OneOf:
    """Annotation of a text that is one of some words."""

    words: tuple[str, ...]

    def check(self, owner: Any, name: str, value: Any) -> Any:
        if value not in self.words:
            raise InputError(f"{owner.label}: {name} is {value!r}; use one of {', '.join(self.words)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {"type": "literal", "expected": list(self.words)}


@dataclass(frozen=True)
class Flag:
    """Annotation of True or False, for which no number and no text stands."""

    def check(self, owner: Any, name: str, value: Any) -> Any:
        if not isinstance(value, bool):
            raise refuse(owner.label, name, value, "True or False")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {"type": "bool", "strict": True}


@dataclass(frozen=True)
class Filled:
    """Annotation of a text or tuple that is not empty."""

    def check(self, owner: Any, name: str, value: Any) -> Any:
        if not value:
            raise InputError(f"{owner.label}: {name} is empty; give it")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = handler(source)
        return {**schema, "min_length": 1} if schema["type"] == "str" else schema


class Record:
    """A dataclass that checks its fields by their annotations, and whose repr leaves out fields with their default."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for value, (name, default, exact, check) in zip(values_of(kind)(self), _checks(kind), strict=True):
            if value is not default and type(value) not in exact:
                kept = check(self, name, value)
                if kept is not value:
                    object.__setattr__(self, name, kept)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schemas

        return schemas.no_info_wrap_validator_function(_of_file, handler(source))

    @property
    def label(self) -> str:
        """The name of the value in messages."""
        kind = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).lower()
        named = [name for name in ("id", "op", "tensor", "name") if name in type(self).__annotations__]
        return f"{kind} {getattr(self, named[0])!r}" if named else kind

    def __repr__(self) -> str:
        kind: Any = type(self)
        shown = [
            f"{each}={_short.repr(value)}"
            for each, default in defaults(kind)
            if (value := getattr(self, each)) != default or default is MISSING
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _of_file(value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except InputError as error:
        raise ValueError(str(error)) from error


@cache
def defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Every field of a dataclass with its default, or `dataclasses.MISSING`."""
    return tuple(
        (each.name, each.default if each.default_factory is MISSING else each.default_factory())
        for each in fields(kind)
    )


@cache
def values_of(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Record → the values of its fields, in order."""
    return attrgetter(*(name for name, _ in defaults(kind)))


@cache
def _checks(kind: Any) -> tuple[tuple[str, Any, frozenset[type], Check], ...]:
    """Field, default, types of which every value is right, and the check of all others."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple((name, default, *_check_of(hints[name])) for name, default in defaults(kind))


def _check_of(hint: Any) -> tuple[frozenset[type], Check]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return frozenset(), lambda owner, name, value: value
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1])
    if origin in (Union, UnionType):
        (exact, check), *_ = [_check_of(each) for each in arguments if each is not NoneType]
        return exact | {NoneType}, lambda owner, name, value: value if value is None else check(owner, name, value)
    if origin is tuple:
        return frozenset(), _pair if arguments[-1] is not ... else _series(arguments[0])
    return _instances(origin or hint, arguments[1:])


def _instances(kind: Any, entries: tuple[Any, ...]) -> tuple[frozenset[type], Check]:
    table = issubclass(kind, Mapping)
    accepted = {str: "a text", bool: "True or False", Mapping: "a dict"}.get(
        kind, f"an object of class {kind.__name__}"
    )
    check_entry = _check_of(entries[0])[1] if entries and entries[0] is not Any else None

    def check(owner: Any, name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise refuse(owner.label, name, value, accepted)
        if check_entry:
            for key, entry in value.items():
                check_entry(owner, f"{name}[{key!r}]", entry)
        return value

    return frozenset() if check_entry else frozenset({dict if table else kind}), check


def _annotated(hint: Any, mark: Any) -> tuple[frozenset[type], Check]:
    if not isinstance(mark, Filled):
        return frozenset(), mark.check
    _, inner = _check_of(hint)

    def check(owner: Any, name: str, value: Any) -> Any:
        return value if type(value) is str and value else mark.check(owner, name, inner(owner, name, value))

    return frozenset(), check


def _series(hint: Any) -> Check:
    exact, check = _check_of(hint)
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    entries = {str: "texts", int: "whole numbers"}.get(kind, getattr(kind, "__name__", "entries"))

    def check_all(owner: Any, name: str, value: Any) -> Any:
        series = tuple_of(owner.label, name, value, object, entries)
        if exact.issuperset(map(type, series)):
            return series
        try:
            return tuple(check(owner, name, entry) for entry in series)
        except InputError:
            for place, entry in enumerate(series):
                check(owner, f"{name}[{place}]", entry)
            raise

    return check_all


def _pair(owner: Any, name: str, value: Any) -> Any:
    if type(value) is not tuple or len(value) != 2 or not type(value[0]) is type(value[1]) is str:
        raise refuse(owner.label, name, value, "a (from, to) pair of node names")
    return value


Seconds = Annotated[float, Number("seconds")]
Bytes = Annotated[int, Number("bytes", whole=True)]
BytesPerSecond = Annotated[float, Number("bytes_per_s", positive=True)]
Name = Annotated[str, Filled()]
Count = Annotated[int, Number(whole=True, at_most=2**63 - 1)]
