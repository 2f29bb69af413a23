"""Bytes on disk: limited reading, atomic writing."""

import os
import secrets
import shutil
import stat
from os import PathLike
from pathlib import Path

from dlplacer.core.errors import InputError

_MOST_BYTES = 4 << 30
"""A graph of a million ops takes half a GiB."""


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The bytes of a file; a pipe is read to its end.

    Parameters
    ----------
    most
        A file with more is refused; by default one with more than any file of ours.

    Raises
    ------
    InputError
        If it cannot be read, is a folder or a device, which may have no end, or is too large.
    """
    most = _MOST_BYTES if most is None else most
    try:
        with path.open("rb") as stream:
            kind = os.fstat(stream.fileno())
            if not (stat.S_ISREG(kind.st_mode) or stat.S_ISFIFO(kind.st_mode)) and not stream.isatty():
                raise InputError(f"cannot read {path}: it is no file; give a regular file or a pipe")
            data = stream.read(most + 1) if kind.st_size <= most else None
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if data is None or len(data) > most:
        raise InputError(f"cannot read {path}: it holds more than {most:,} bytes; give a smaller one")
    return data


def write_bytes(path: str | PathLike[str], data: bytes) -> None:
    """Write atomically to a regular file and plainly to anything else (a pipe, ``/dev/stdout``).

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another path") from error


def _replace(path: Path, data: bytes) -> None:
    # In the same folder: a rename is atomic within one file system only.
    temporary = path.with_name(f".dlplacer.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            # Otherwise a crash after the rename may leave the new name on an empty file.
            stream.flush()
            os.fsync(stream.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
