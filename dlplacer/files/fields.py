"""Shared reading of the file formats: pydantic models check records and list every mistake with its path."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.expect import field_path, shown
from dlplacer.core.record import Record, defaults, place_of, problem_of, values_of
from dlplacer.files.text import read_json

Model = TypeVar("Model", bound="FileModel")
T = TypeVar("T")

_SCALARS = (str, int, float, bool, type(None))


class FileModel(BaseModel):
    """The content of a file of format `FORMAT`, or of a part of a file; an unknown field is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    FORMAT: ClassVar[str] = ""

    @classmethod
    def load(cls, source: Any, where: str = "") -> Self:
        """The checked content of the file `source`; if `where` is given, `source` is a JSON value that it names.

        Raises FileFormatError with one line per mistake.
        """
        value, where = source if where else read_json(source), where or str(source)
        if not isinstance(value, dict):
            raise FileFormatError(where, [f"the file: must hold an object (it is {shown(value)})"])
        if (mistake := cls.format_mistake(value.get("format"))) is not None:
            raise FileFormatError(where, [f"format: {mistake}"])
        content = validated(value, cls, where)
        if found := [*content.mistakes()]:
            raise FileFormatError(where, found)
        return content

    @classmethod
    def read(cls, source: Any, where: str = "") -> Any:
        """The value that a file, or a JSON value, describes; parameters and errors as in `load`."""
        return built(where or str(source), cls.load(source, where).value)

    @classmethod
    def format_mistake(cls, found: Any) -> str | None:
        """The mistake in a file's ``format``; None if there is none."""
        if found is None:
            return f'missing; the file must start with "format": "{cls.FORMAT}"'
        kind = cls.FORMAT.removeprefix("dlplacer.").partition("/")[0]
        told = f"{shown(found)} is not {cls.FORMAT!r}; give a {kind} file, and update dlplacer if it is newer"
        return None if found == cls.FORMAT else told

    def mistakes(self) -> Iterator[str]:
        """Contradictions between fields that are valid by themselves."""
        return iter(())

    def value(self) -> Any:
        """The value that the content describes."""
        raise NotImplementedError


Table = Annotated[dict[str, Any], Field(default_factory=dict)]
ListOf = Annotated[list[T], Field(default_factory=list)]


def without(name: str) -> BeforeValidator:
    """Annotation that makes a record ignore the extra field `name` in files."""
    return BeforeValidator(
        lambda value: {key: value[key] for key in value if key != name} if isinstance(value, dict) else value
    )


def plain(value: Any, *, all_fields: bool = False) -> Any:
    """The JSON value of a record or of a field's value; without `all_fields`, fields with their default are omitted."""
    if isinstance(value, Record):
        kind: Any = type(value)
        told: dict[str, Any] = {}
        for entry, (name, default) in zip(values_of(kind)(value), defaults(kind), strict=True):
            if all_fields or (entry is not default and entry != default):
                told[name] = entry if type(entry) in _SCALARS else plain(entry)
        return told
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    return {name: plain(entry) for name, entry in value.items()} if isinstance(value, Mapping) else value


def validated(value: Any, model: type[Model], where: str) -> Model:
    """The content of a JSON value; raises FileFormatError unless each field is valid by itself."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = [f"{field_path(place_of(each))}: {problem_of(each)}" for each in error.errors()]
        raise FileFormatError(where, found) from None


def built(where: str, build: Callable[..., T], *arguments: Any) -> T:
    """The value that `build` returns; the lines of an `InputError` that it raises become mistakes of the file."""
    try:
        return build(*arguments)
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(where, str(error).splitlines()) from error
