"""Field types and the mistake list shared by the three file formats."""

import math
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dlplacer.errors import FileFormatError, InputError
from dlplacer.files.text import read_json
from dlplacer.units import parse_quantity

Model = TypeVar("Model", bound="FileModel")


class FileModel(BaseModel):
    """A part of a file: any field that the format does not list is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _quantity(dimension: str, whole: bool = False) -> BeforeValidator:
    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("a number or a text such as '25 GB/s' is needed, not a truth value")
        if isinstance(value, str):
            value = parse_quantity(value, dimension)
        if isinstance(value, (int, float)) and not math.isfinite(value):
            raise ValueError(f"{value} is not finite")
        if whole and isinstance(value, float):
            if value != round(value):
                raise ValueError(f"{value} is not a whole number of bytes")
            return round(value)
        if isinstance(value, int) and not whole:
            return float(value)
        return value

    return BeforeValidator(convert)


Seconds = Annotated[float, _quantity("seconds"), Field(ge=0)]
Bytes = Annotated[int, _quantity("bytes", whole=True), Field(ge=0)]
BytesPerSecond = Annotated[float, _quantity("bytes_per_s"), Field(gt=0)]
Flops = Annotated[float, _quantity("flops"), Field(ge=0)]
FlopsPerSecond = Annotated[float, _quantity("flops_per_s"), Field(gt=0)]
AmountOfBytes = Annotated[float, _quantity("bytes"), Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Meta = dict[str, Any]


def load_model(path: Path, model: type[Model], kind: str, version: int) -> Model:
    """The checked content of a file.

    Raises
    ------
    FileFormatError
        With one line per mistake.
    """
    return parse_model(read_json(path), model, kind, version, str(path))


def parse_model(value: Any, model: type[Model], kind: str, version: int, where: str) -> Model:
    """As `load_model`, for a value that was read already; `where` names it in messages."""
    _require_format(value, kind, version, where)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise FileFormatError(where, [_describe(mistake) for mistake in error.errors()]) from None


def built(where: str, build: Any, *arguments: Any) -> Any:
    """What `build` returns; an `InputError` in it becomes a mistake of the file."""
    try:
        return build(*arguments)
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(where, [str(error)]) from error


def _require_format(value: Any, kind: str, version: int, where: str) -> None:
    if not isinstance(value, dict):
        raise FileFormatError(where, [f"the file holds a {type(value).__name__}; it must be an object"])
    found = value.get("format")
    expected = f"dlplacer.{kind}/{version}"
    if found == expected:
        return
    if found is None:
        raise FileFormatError(where, [f"format: missing; the file must start with \"format\": \"{expected}\""])
    name, _, number = str(found).partition("/")
    if name == f"dlplacer.{kind}" and number.isdecimal() and int(number) > version:
        raise FileFormatError(where, [f"format: {found!r} is newer than {expected!r}; update dlplacer to read it"])
    raise FileFormatError(where, [f"format: {found!r} is not {expected!r}; give a {kind} file"])


def _describe(mistake: Any) -> str:
    path = ""
    for part in mistake["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith(("function-", "constrained-", "dict[", "float", "int", "str", "list[", "tuple[")):
            path += f".{part}" if path else part
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "extra_forbidden":
        return f"{path}: unknown field; remove it or put it under 'meta'"
    if mistake["type"] == "missing":
        return f"{path}: required, but missing"
    shown = repr(mistake["input"])
    if isinstance(mistake["input"], (dict, list)) or len(shown) > 60:
        return f"{path}: {message}"
    return f"{path}: {message} (it is {shown})"
