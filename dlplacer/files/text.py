"""Bytes, text and JSON on disk: strict reading with a size limit, and atomic writing."""

import json
import os
import secrets
import shutil
import stat
from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.expect import expect, printable

_MOST_BYTES = 4 << 30
"""Limit on the size of a file; a graph of a million ops takes half a GiB."""


def read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes:
    """The bytes of a file, or of a pipe up to its end.

    Raises InputError if it cannot be read, holds more than `most` bytes, or is a folder or a possibly endless device.
    """
    try:
        with path.open("rb") as stream:
            kind = os.fstat(stream.fileno())
            if not (stat.S_ISREG(kind.st_mode) or stat.S_ISFIFO(kind.st_mode)) and not stream.isatty():
                raise InputError(f"cannot read {path}: it is not a file; give a regular file or a pipe")
            data = stream.read(most + 1) if kind.st_size <= most else None
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if data is None or len(data) > most:
        raise InputError(f"cannot read {path}: it holds more than {most:,} bytes; give a smaller one")
    return data


def write_bytes(path: str | PathLike[str], data: bytes) -> None:
    """Write `data` atomically to a regular file, and directly to anything else (a pipe, ``/dev/stdout``).

    Raises InputError if the file cannot be written.
    """
    expect("", "path", path, (str, PathLike), "the path of a file to write")
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another path") from error


def _replace(path: Path, data: bytes) -> None:
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.with_name(f".dlplacer.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            # Without this, a crash after the rename may leave an empty file under the new name.
            stream.flush()
            os.fsync(stream.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_text(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    """The text of a file in UTF-8, UTF-16 (PowerShell writes it) or UTF-32, with or without a byte order mark.

    Raises InputError if the file cannot be read or holds more than `most_bytes`, and FileFormatError for any other
    encoding.
    """
    content = read_bytes(path, most_bytes)
    try:
        return content.decode(json.detect_encoding(content))
    except UnicodeDecodeError as error:
        raise FileFormatError(str(path), [f"byte {error.start}: not UTF-8 text; save the file as UTF-8"]) from error


def read_json(path: Path) -> Any:
    """The JSON value in a file.

    Raises InputError if the file cannot be read, and FileFormatError if it is not JSON, repeats a key in an object, or
    holds NaN or an infinity.
    """
    text, mistakes = read_text(path), list[str]()

    def paired(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # json silently keeps the last of several equal keys, so a value in the file would be lost.
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
            mistakes.extend(f"{printable(key)}: given twice in one object; remove one" for key in twice)
        return found

    def refused(constant: str) -> float:
        mistakes.append(f"{constant}: every number must be finite")
        return 0.0

    try:
        value = json.loads(text, parse_constant=refused, object_pairs_hook=paired)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}: {error.msg}; the file must be JSON"
        raise FileFormatError(str(path), [place]) from error
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"
        raise FileFormatError(str(path), [f"the file: {reason}; mend it"]) from error
    if mistakes:
        raise FileFormatError(str(path), mistakes)
    return value


def write_json(path: str | PathLike[str], value: Any) -> None:
    """Write a JSON value with one line for each node, edge, op or transfer, so that files diff well.

    Raises InputError if the file cannot be written, or JSON cannot hold the value: NaN, an infinity or a Python object.
    """
    try:
        text = render_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"{error}; JSON holds finite numbers, texts, lists and objects"
        raise InputError(f"cannot write {path}: {reason}") from error
    write_text(path, text + "\n")


def write_text(path: str | PathLike[str], text: str) -> None:
    """Write `text` atomically to a regular file, and directly to anything else (a pipe, ``/dev/stdout``).

    Lone surrogates, which UTF-8 cannot encode, become JSON escapes: ``\\ud800``.

    Raises InputError if the file cannot be written.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def render_json(value: Any, depth: int = 0) -> str:
    """JSON text of a value; objects of the outer three levels, and their lists of objects, have a line per entry."""
    pad, inner = "  " * depth, "  " * (depth + 1)
    if isinstance(value, dict) and value and depth < 3:
        texts = {key if isinstance(key, str) else _line(key): entry for key, entry in value.items()}
        lines = [f"{inner}{_line(key)}: {render_json(entry, depth + 1)}" for key, entry in texts.items()]
        return "{\n" + ",\n".join(lines) + f"\n{pad}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        lines = [f"{inner}{_line(entry)}" for entry in value]
        return "[\n" + ",\n".join(lines) + f"\n{pad}]"
    return _line(value)


_line = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
"""JSON text of a value in one line; `json.dumps` makes an encoder per call, which doubles its time for short lines."""
