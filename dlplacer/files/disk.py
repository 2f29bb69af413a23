"""Bytes on disk: limited reading, atomic writing."""

import contextlib
import os
import secrets
import stat
import tempfile
from os import PathLike
from pathlib import Path

from dlplacer.core.errors import InputError

_MOST_BYTES = 4 << 30
"""A graph of a million ops takes half a GiB."""
_PREFIX = ".dlplacer."
_DESCRIPTORS = "/proc/self/fd"


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

    Whoever else writes the same file at the same time, one of both is there afterwards, whole; a process that is killed
    leaves the old file, and where the system knows files without names nothing beside it.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    path = Path(path)
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
    # In the same folder: a rename is atomic within one file system only.
    handle, temporary = _temporary(path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            # Otherwise a crash after the rename may leave the new name on an empty file.
            stream.flush()
            os.fsync(stream.fileno())
            if temporary is None:
                temporary = _named(stream.fileno(), path.parent)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        if temporary is not None:
            os.unlink(temporary)
        raise


def _temporary(folder: Path) -> tuple[int, str | None]:
    """A file to write into, with its name; where the system can, without one: killed, a process leaves nothing."""
    if hasattr(os, "O_TMPFILE") and os.path.isdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # a network file system knows none
            return os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600), None
    return tempfile.mkstemp(dir=folder, prefix=_PREFIX)


def _named(handle: int, folder: Path) -> str:
    """A name for a file that has none."""
    while True:
        name = str(folder / f"{_PREFIX}{secrets.token_hex(8)}")
        with contextlib.suppress(FileExistsError):
            # The folder of a source that is absolute is not looked at; but given one, Python has the system follow the
            # descriptor's link to what it stands for.
            os.link(f"{_DESCRIPTORS}/{handle}", name, src_dir_fd=handle)
            return name


def _umask() -> int:
    # There is no way to read it without setting it.
    current = os.umask(0)
    os.umask(current)
    return current
