"""Records: frozen dataclasses whose fields pydantic checks, in Python and in files alike."""

import dataclasses
import numbers
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import MinLen

from dlplacer.core.errors import InputError
from dlplacer.core.expect import field_path, in_short, shown
from dlplacer.core.units import parse_quantity

_UNKNOWN = "unknown field; remove it or put it under 'meta'"
_TEXTS = {"extra_forbidden": _UNKNOWN, "unexpected_keyword_argument": _UNKNOWN, "missing": "is required, but missing"}
"""Kind of mistake → text that replaces pydantic's text and omits the value."""
_NUMBER, _TABLE = "<number>", "<table>"
TAGS = (_NUMBER, _TABLE, "[key]", "<device>", "<router>")
"""Parts of pydantic's paths that are not fields."""


@dataclass(frozen=True)
class Number:
    """Annotation for a finite number or a text with a unit; `dimension` is a key of `dlplacer.core.units.UNITS`.

    `positive` excludes 0, `whole` excludes fractions, and `named` also allows a table from names to numbers.
    """

    dimension: str = ""
    at_least: float = 0
    at_most: float = sys.float_info.max
    positive: bool = False
    whole: bool = False
    named: bool = False

    def read(self, value: Any) -> Any:
        """A text with a unit, numpy scalar, rational or whole float as a plain number; other values are unchanged."""
        if type(value) is str and self.dimension:
            value = parse_quantity(value, self.dimension)
        if hasattr(value, "dtype"):
            value = value.item()
        elif isinstance(value, numbers.Rational) and not isinstance(value, int):
            value = float(value)
        if type(value) is int and not self.whole and abs(value) > sys.float_info.max:
            raise ValueError(f"must be at most {sys.float_info.max:g} (it is {shown(value)})")
        return int(value) if self.whole and type(value) is float and value.is_integer() else value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schemas

        limits: dict[str, Any] = {"gt" if self.positive else "ge": self.at_least, "strict": True}
        whole, fraction = schemas.int_schema, partial(schemas.float_schema, allow_inf_nan=False)
        kind: Any = whole(**limits, le=int(self.at_most)) if self.whole else fraction(**limits, le=self.at_most)
        number = schemas.no_info_before_validator_function(self.read, kind)
        if not self.named:
            return number
        choices: dict[Any, Any] = {_NUMBER: number, _TABLE: schemas.dict_schema(schemas.str_schema(), number)}
        return schemas.tagged_union_schema(choices, lambda value: _TABLE if isinstance(value, Mapping) else _NUMBER)


@dataclass(frozen=True)
class OneOf:
    """Annotation for a text that must be one of `words`."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {"type": "literal", "expected": list(self.words)}


Filled = partial(MinLen, 1)
"""Annotation for a text or tuple that must not be empty."""

Seconds = Annotated[float, Number("seconds")]
Bytes = Annotated[int, Number("bytes", whole=True)]
BytesPerSecond = Annotated[float, Number("bytes_per_s", positive=True)]
Count = Annotated[int, Number(whole=True, at_most=2**63 - 1)]
Name = Annotated[str, Filled()]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(kind: Any = None, /, **settings: Any) -> Any:
        """Like `dataclasses.dataclass`, with checked fields; an InputError names the record, the field and its value.

        pydantic is loaded when a class gets its first instance, so that ``--help`` need not load it.
        """
        if kind is None:
            return partial(record, **settings)
        made = dataclass(kind, **settings)

        @wraps(made.__init__)
        def first(self: Any, /, *values: Any, **named: Any) -> None:
            made.__init__ = _checked_init(made)
            made.__init__(self, *values, **named)

        made.__init__ = first
        return made


def _checked_init(kind: Any) -> Callable[..., None]:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ArgsKwargs

    validate, names = TypeAdapter(kind).validator.validate_python, [name for name, _ in defaults(kind)]

    @wraps(kind.__init__)
    def checked(self: Any, /, *values: Any, **named: Any) -> None:
        try:
            validate(ArgsKwargs(values, named), self_instance=self)
        except ValidationError as error:
            for name, value in (*zip(names, values, strict=False), *named.items()):
                if name in names:
                    object.__setattr__(self, name, value)
            raise InputError(_refusal(self, error.errors()[0])) from None

    return checked


def _refusal(owner: Any, mistake: Any) -> str:
    place, problem = place_of(mistake), problem_of(mistake)
    if not place:
        return problem
    if isinstance(place[0], int):
        kind: Any = type(owner)
        place[0] = defaults(kind)[place[0]][0]
    try:
        label = owner.label
    except AttributeError:
        label = type(owner).__name__
    return f"{label}: {field_path(place)}{':' * (mistake['type'] == 'value_error')} {problem}"


class Record:
    """Base class of records, with a label for messages and a repr that omits fields with their default value."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid", "arbitrary_types_allowed": True}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schemas

        read = _strict(handler(source))
        return schemas.no_info_wrap_validator_function(_located, read) if hasattr(cls, "__post_init__") else read

    @property
    def label(self) -> str:
        """The record's name in messages."""
        kind = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).lower()
        named = [name for name in ("id", "op", "tensor", "name") if name in type(self).__annotations__]
        return f"{kind} {getattr(self, named[0])!r}" if named else kind

    def __repr__(self) -> str:
        kind: Any = type(self)
        told = [
            f"{each}={in_short(value)}"
            for each, default in defaults(kind)
            if (value := getattr(self, each)) != default or default is dataclasses.MISSING
        ]
        return f"{type(self).__name__}({', '.join(told)})"


def _strict(schema: Any) -> Any:
    """The schema without conversions from bytes to text and from numbers or texts to bool."""
    if isinstance(schema, dict):
        strict = {"strict": True} if schema.get("type") in ("str", "bool") else {}
        return {key: _strict(value) for key, value in schema.items()} | strict
    return [_strict(entry) for entry in schema] if isinstance(schema, list) else schema


def _located(value: Any, read: Callable[[Any], Any]) -> Any:
    """Turn the InputError of a rule between fields into a pydantic mistake, which has a path."""
    try:
        return read(value)
    except InputError as error:
        raise ValueError(str(error)) from error


@cache
def defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Every field of a dataclass with its default, or `dataclasses.MISSING`."""
    missing = dataclasses.MISSING
    return tuple(
        (each.name, each.default if each.default_factory is missing else each.default_factory())
        for each in dataclasses.fields(kind)
    )


@cache
def values_of(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Record → the values of its fields, in order."""
    return attrgetter(*(name for name, _ in defaults(kind)))


def problem_of(mistake: Any) -> str:
    """The text of a mistake that pydantic found in a field, with the value."""
    if mistake["type"] == "value_error":
        return str(mistake["ctx"]["error"])
    told: str = mistake["msg"].replace("Input should", "must") + f" (it is {shown(mistake['input'])})"
    return _TEXTS.get(mistake["type"], told)


def place_of(mistake: Any) -> list[str | int]:
    """The path to a mistake: names of fields and positions."""
    return [part for part in mistake["loc"] if part not in TAGS]
