"""The standard streams of a command: in another encoding, closed, full, or without a reader."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from dlplacer.core.errors import InputError

_NOBODY_READS = (errno.EPIPE, errno.ECONNRESET)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@contextlib.contextmanager
def usable_streams() -> Iterator[None]:
    """Streams to which anything can be printed, for the length of a command.

    Characters that the locale's encoding lacks become question marks. A closed stream takes everything, as a pipe that
    nobody reads. Argparse ends the process with a help text, so its arrival is checked here.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        yield
    except SystemExit as ending:
        # rich ends the process with 1 where nobody reads its tables.
        if isinstance(ending.__context__, BrokenPipeError):
            raise SystemExit(end_of_stdout(ending.__context__)) from None
        try:
            sys.stdout.flush()
        except OSError as error:
            raise SystemExit(end_of_stdout(error)) from None
        raise


def is_of_stdout(error: BaseException) -> bool:
    """True for an error of writing to stdout; errors of files get another form when the file is written."""
    return isinstance(error, OSError) and error.filename is None and error.errno in (*_NOBODY_READS, *_NO_ROOM)


def end_of_stdout(error: BaseException) -> int:
    """The exit code if stdout takes no more: 0 if its reader has closed it, else that of an unwritten file."""
    _drop(sys.stdout)
    if isinstance(error, OSError) and error.errno in _NOBODY_READS:
        return 0
    reason = error.strerror if isinstance(error, OSError) else error
    say(f"cannot write to stdout: {reason}; the output is incomplete: free disk space or redirect it elsewhere")
    return InputError.exit_code


def say(text: str) -> None:
    """Print a last word to stderr, if anybody takes it."""
    try:
        print(f"dlplacer: {text}", file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Let a stream take everything: Python flushes it once more at exit, and would report the same error again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
