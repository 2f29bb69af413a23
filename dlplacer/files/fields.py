"""Field types and the mistake list shared by the three file formats."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.record import NUMBER, TABLE, Record, defaults, values_of
from dlplacer.files.text import field_path, read_loosely

Model = TypeVar("Model", bound="FileModel")
T = TypeVar("T")

_SCALARS = (str, int, float, bool, type(None))
_TAGS = (NUMBER, TABLE, "<device>", "<router>", "<other>")
_UNKNOWN = "unknown field; remove it or put it under 'meta'"
_TEXTS = {
    "extra_forbidden": _UNKNOWN,
    "unexpected_keyword_argument": _UNKNOWN,
    "missing": "required, but missing",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le:g}",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "dataclass_type": "must be an object",
    "tuple_type": "must be a list",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "too_short": "must not have fewer entries than {min_length}",
    "too_long": "must not have more entries than {max_length}",
    "string_unicode": "holds half a surrogate pair, which is no text",
    "value_error": "{error}",
}
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_COUNT_KEY = re.compile(r"0*[1-9][0-9]{0,11}")
"""Up to a million million: Python refuses to read thousands of digits, and no float holds hundreds."""
_SPEAK_FOR_THEMSELVES = ("extra_forbidden", "unexpected_keyword_argument", "missing", "value_error")


class FileModel(BaseModel):
    """A part of a file: any field that the format does not list is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def mistakes(self) -> Iterator[str]:
        """Contradictions between fields each of which is valid."""
        return iter(())

    def located(self) -> Iterator[tuple[str, str]]:
        """Place and text of every mistake that makes a value refuse the content; for content that it has refused."""
        return iter(())


Table = Annotated[dict[str, Any], Field(default_factory=dict)]
ListOf = Annotated[list[T], Field(default_factory=list)]


def without(name: str) -> BeforeValidator:
    """Annotation of a record that may have one more field in files, which nothing reads."""
    return BeforeValidator(
        lambda value: (
            {key: entry for key, entry in value.items() if key != name}
            if isinstance(value, dict) and name in value
            else value
        )
    )


def plain(value: Any, *, all_fields: bool = False) -> Any:
    """The JSON value of a record or of a field's value; fields that hold their default are left out."""
    if isinstance(value, Record):
        kind: Any = type(value)
        shown: dict[str, Any] = {}
        for entry, (name, default) in zip(values_of(kind)(value), defaults(kind), strict=True):
            if all_fields or (entry is not default and entry != default):
                shown[name] = entry if type(entry) in _SCALARS else plain(entry)
        return shown
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    return {name: plain(entry) for name, entry in value.items()} if isinstance(value, Mapping) else value


def load_model(path: Path, model: type[Model], kind: str, version: int) -> Model:
    """The checked content of a file.

    Raises
    ------
    FileFormatError
        With one line per mistake.
    """
    value, mistakes = read_loosely(path)
    try:
        content = parse_model(value, model, kind, version, str(path))
    except FileFormatError as error:
        known = {_path_of(mistake) for mistake in mistakes}
        mistakes += [mistake for mistake in error.mistakes if _path_of(mistake) not in known]
    if mistakes:
        raise FileFormatError(str(path), mistakes)
    return content


def parse_model(value: Any, model: type[Model], kind: str, version: int, where: str) -> Model:
    """As `load_model`, for a value that was read already; `where` names it in messages."""
    if not isinstance(value, dict):
        raise FileFormatError(where, [f"the file: must hold an object (it is {_shown(value)})"])
    mistake = format_mistake(value.get("format"), kind, version)
    if mistake is not None:
        raise FileFormatError(where, [f"format: {mistake}"])
    content = validated(value, model, where)
    mistakes = [*content.mistakes()]
    if mistakes:
        raise FileFormatError(where, [*_joined(content.located()), *mistakes])
    return content


def validated(value: Any, model: type[Model], where: str) -> Model:
    """The content whose fields are right, each by itself."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise FileFormatError(where, _described(error, value)) from None


def count_key_mistakes(field: str, table: Mapping[str, object], unit: str) -> Iterator[str]:
    """Keys of a table that are no whole numbers of a unit from 1 on, or mean the same number as one before them."""
    known: dict[int, str] = {}
    for key in table:
        if not _COUNT_KEY.fullmatch(key):
            yield f"{field}.{_shortened(key)}: the key must be a whole number of {unit}, at least 1 and below 1e+12"
        elif known.setdefault(int(key), key) != key:
            yield f"{field}.{_shortened(key)}: means the same as {_shown(known[int(key)])}; remove one"


def _shortened(key: str) -> str:
    return key if len(key) <= _SHORT.maxstring else f"{key[: _SHORT.maxstring]}…"


def built(
    where: str, build: Callable[..., T], *arguments: Any, located: Callable[[], Iterable[tuple[str, str]]] = lambda: ()
) -> T:
    """The value that `build` returns; an `InputError` in it becomes the mistakes of the file that are `located`."""
    try:
        return build(*arguments)
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(where, _joined(located()) or [str(error)]) from error


def _joined(mistakes: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{place}: {text}" for place, text in mistakes]


def format_mistake(found: Any, kind: str, version: int) -> str | None:
    """The mistake in a file's ``format`` field; None if there is none."""
    expected = f"dlplacer.{kind}/{version}"
    if found == expected:
        return None
    if found is None:
        return f'missing; the file must start with "format": "{expected}"'
    name, _, number = str(found).partition("/")
    if name == f"dlplacer.{kind}" and number.isdecimal() and int(number[:9]) > version:
        return f"{_shown(found)} is newer than {expected!r}; update dlplacer to read it"
    return f"{_shown(found)} is not {expected!r}; give a {kind} file"


def _described(error: ValidationError, value: Any) -> list[str]:
    return [_describe(mistake, value) for mistake in error.errors()]


def _describe(mistake: Any, value: Any) -> str:
    parts = [part for part in mistake["loc"] if not (isinstance(part, str) and part in _TAGS)]
    kind, context = mistake["type"], mistake.get("ctx", {})
    message = _TEXTS[kind].format(**context) if kind in _TEXTS else mistake["msg"]
    notes = [] if kind in _SPEAK_FOR_THEMSELVES else [f"it is {_shown(mistake['input'])}"]
    owner = _owner(value, parts)
    if owner and parts[-1] != "id":
        notes.append(f"in {owner}")
    return f"{field_path(parts)}: {message}" + (f" ({', '.join(notes)})" if notes else "")


def _owner(value: Any, parts: list[str | int]) -> str:
    """The innermost named node, edge or op around a field, so that messages can name it."""
    owner = ""
    for part in parts[:-1]:
        value = value[part]
        for keys in (("id",), ("op",), ("source", "target")) if isinstance(value, dict) else ():
            names = [value.get(key) for key in keys]
            if all(names):
                owner = " → ".join(map(_shown, names))
                break
    return owner


def _shown(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else _SHORT.repr(value)


def _path_of(mistake: str) -> str:
    return mistake.partition(": ")[0]
