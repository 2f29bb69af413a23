"""Text and JSON on disk: strict reading, atomic writing."""

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from dlplacer.errors import FileFormatError, InputError


def read_json(path: Path) -> Any:
    """The JSON value in a UTF-8 file.

    Raises
    ------
    InputError
        If the file cannot be read.
    FileFormatError
        If it is no JSON, repeats a key in an object, or holds NaN or an infinity.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(str(path), [f"byte {error.start}: not UTF-8 text; save the file as UTF-8"]) from error
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise FileFormatError(
            str(path), [f"line {error.lineno}, column {error.colno}: {error.msg}; the file must be JSON"]
        ) from error
    except ValueError as error:
        raise FileFormatError(str(path), [str(error)]) from error
    except RecursionError as error:
        raise FileFormatError(str(path), ["objects are nested too deeply for any dlplacer file"]) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value: one line for each node, edge, op or transfer, so that files diff well."""
    write_text(path, render_json(value) + "\n")


def render_json(value: Any) -> str:
    """JSON text in which lists of objects at the first two levels have one line per entry."""
    return _render(value, depth=0)


def write_text(path: Path, text: str) -> None:
    """Write text atomically to a regular file and plainly to anything else (a pipe, ``/dev/stdout``).

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """As `write_text`, for bytes."""
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            with path.open("wb") as stream:
                stream.write(data)
            return
        _replace(path.resolve(), data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another -o") from error


def _replace(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"the file holds {name}; every number must be finite")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {repeated!r} is given twice in one object; remove one")
    return value


def _render(value: Any, depth: int) -> str:
    pad, inner = "  " * depth, "  " * (depth + 1)
    if isinstance(value, dict) and value and depth < 3:
        lines = [f"{inner}{json.dumps(key)}: {_render(entry, depth + 1)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{pad}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        lines = [f"{inner}{json.dumps(entry, ensure_ascii=False)}" for entry in value]
        return "[\n" + ",\n".join(lines) + f"\n{pad}]"
    return json.dumps(value, ensure_ascii=False)
