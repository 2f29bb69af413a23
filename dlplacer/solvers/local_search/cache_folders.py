"""Folders of a cache, one for each version of what is kept: those used last stay, and any that a process still uses."""

import contextlib
import os
import re
import shutil
import time
import types
from collections.abc import Iterator
from pathlib import Path

MOST_FOLDERS = 8
"""A version of the kernels takes about 3 MB; someone who changes them, or has several environments, uses a few."""
_UNMARKED_S = 86400.0
"""A folder that an older release made has no mark: it is taken to be in use for a day."""
_NAME = re.compile(r"[0-9a-f]{16}")
_REMOVED = ".removed-"
_MARK = ".used"
_TRIES = 20
_PAUSE_S = 0.01

_held: list[int] = []
"""Locks of this process on the marks of its folders, which end with it."""


def used_folder(parent: Path, name: str, most: int = MOST_FOLDERS) -> Path | None:
    """A folder for this process to read and write; others are removed where there are more than `most`.

    A process holds a shared lock on the mark of its folder; a folder is removed under an exclusive one, so never while
    a process is alive that may write to it.

    Parameters
    ----------
    name
        16 hexadecimal digits. What else is in the parent is left alone.

    Raises
    ------
    OSError
        If the folder cannot be made.
    """
    folder = parent / name
    for _ in range(_TRIES):
        # `exist_ok` looks again whether a folder is there, and may find it removed by then.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
        if _hold(folder):
            os.utime(folder)
            with contextlib.suppress(OSError):
                _remove_oldest(parent, most)
            return folder
        time.sleep(_PAUSE_S)  # it is being removed at the moment
    return None


def _hold(folder: Path) -> bool:
    """True if this process holds the folder now, as it does to its end."""
    fcntl = _locks()
    if fcntl is None:
        return True
    try:
        mark = os.open(folder / _MARK, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(mark)
        return False
    except OSError:  # a file system without locks, where nobody gets an exclusive one either
        os.close(mark)
        return True
    with contextlib.suppress(FileNotFoundError):
        # Locked too late, it is the mark of a folder that is gone.
        if os.path.samestat(os.fstat(mark), os.stat(folder / _MARK)):
            _held.append(mark)
            return True
    os.close(mark)
    return False


def _remove_oldest(parent: Path, most: int) -> None:
    for left in parent.glob(f"{_REMOVED}*"):
        shutil.rmtree(left, ignore_errors=True)
    folders = [entry for entry in parent.iterdir() if _NAME.fullmatch(entry.name) and entry.is_dir()]
    for folder in sorted(folders, key=_last_use_s, reverse=True)[most:]:
        marked = (folder / _MARK).exists()
        if marked or time.time() - _last_use_s(folder) > _UNMARKED_S:
            with contextlib.suppress(OSError), _alone(folder):
                gone = parent / f"{_REMOVED}{folder.name}-{os.getpid()}"
                # First out of the way, in one step: nobody finds half a folder.
                folder.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder that no process uses; OSError if one does, or if nobody can tell."""
    fcntl = _locks()
    if fcntl is None:
        raise OSError("this system knows no locks of files")
    mark = os.open(folder / _MARK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(mark)


def _last_use_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _locks() -> "types.ModuleType | None":
    try:
        import fcntl
    except ImportError:
        return None
    return fcntl
