"""Standard streams of a command: notes and progress on stderr, and streams that are closed, full or without a reader.

On a terminal a line of progress is kept up to date; elsewhere one is written every ten seconds. Both say how long it
has taken and how long it is expected to take. Commands that end within two seconds say nothing.
"""

import contextlib
import errno
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from dlplacer.core.errors import InputError
from dlplacer.core.units import format_duration, format_seconds
from dlplacer.planning.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from rich.text import Text

QUIET, NORMAL, VERBOSE = -1, 0, 1
FIRST_AFTER_S = 2.0
LINE_EVERY_S = 10.0
_LEAST_SHARE = 0.02
"""Less than this done says nothing of how long the rest takes."""
_level = NORMAL

Show = Callable[..., None]
"""Takes the progress that a function reports: a text and a share, two counts, or the progress of a solve."""


def set_verbosity(level: int) -> None:
    """Set for this process: `QUIET`, `NORMAL` or `VERBOSE`."""
    global _level
    _level = level


def note(*texts: str | None) -> None:
    """Tell the user something on stderr, unless it shall be quiet; None is nothing to tell."""
    for text in texts if _level > QUIET else ():
        if text is not None:
            say(text)


def told_written(*paths: object) -> None:
    """Report on stderr the files that were written; None for those that were not asked for."""
    for path in paths if _level > QUIET else ():
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


class _Line:
    """The text of the moment, as of when it is asked for."""

    def __init__(self, what: str, limit_s: float | None) -> None:
        self.what, self.limit_s = what, limit_s
        self.began = time.monotonic()
        self.text = ""
        self.share: float | None = None

    def show(self, *told: Any) -> None:
        """Change it; with ``-v`` every change is a line of its own."""
        text, share = _text_of(told)
        changed = text != self.text
        self.text, self.share = text, share
        if changed and _level >= VERBOSE:
            print(f"dlplacer: {self}", file=sys.stderr)

    def __str__(self) -> str:
        elapsed_s = time.monotonic() - self.began
        expected_s = elapsed_s / self.share if self.share and self.share >= _LEAST_SHARE else self.limit_s
        times = format_duration(elapsed_s)
        if expected_s is not None:
            times += f" of about {format_duration(max(expected_s, elapsed_s))}"
        return ": ".join(part for part in (self.what, self.text) if part) + f" ({times})"

    def __rich__(self) -> "Text":
        from rich.text import Text

        return Text("" if time.monotonic() - self.began < FIRST_AFTER_S else str(self))


def _text_of(told: tuple[Any, ...]) -> tuple[str, float | None]:
    """Text and share of a function's report."""
    match told:
        case (int(done), int(total)):
            return f"{done} of {total}", done / total if total else None
        case (str(text), int(done), int(total)):
            return text, done / total if total else None
        case (int(workers), int(seed), int(epoch), float(metric)):
            reached = "" if metric != metric else f", metric {metric:.4g}"
            return f"{workers} workers, seed {seed}: epoch {epoch}{reached}", None
        case (str(text), *share):
            return text, share[0] if share else None
    (found,) = told
    if hasattr(found, "splits"):
        return f"{len(found.splits)} ops split: {format_seconds(found.split_s)}", None
    best = "none yet" if found.makespan_s is None else format_seconds(found.makespan_s)
    gap = "" if found.gap is None else f"  gap {100 * found.gap:.2f} %"
    return f"best {best}  bound {format_seconds(found.lower_bound_s)}{gap}", None


@contextlib.contextmanager
def interruptible(announcement: str) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, with an announcement; a second one interrupts at once."""
    stop = threading.Event()
    with stop_on_interrupt(stop, lambda: print(f"\ndlplacer: {announcement}", file=sys.stderr)):
        yield stop


@contextlib.contextmanager
def progress(what: str, limit_s: float | None = None) -> Iterator[Show]:
    """A function that shows the command's progress; `limit_s` is its expected time until shares are reported."""
    line = _Line(what, limit_s)
    with contextlib.nullcontext() if _level <= QUIET else _live(line) if sys.stderr.isatty() else _lines(line):
        yield line.show


@contextlib.contextmanager
def _live(line: _Line) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    # Twice a second: whoever times ops must not be disturbed. What is printed to stdout is the result, not a message.
    with Live(line, console=Console(stderr=True), transient=True, refresh_per_second=2, redirect_stdout=False):
        yield


@contextlib.contextmanager
def _lines(line: _Line) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(LINE_EVERY_S):
            print(f"dlplacer: {line}", file=sys.stderr, flush=True)

    writer = threading.Thread(target=write, name="progress", daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


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
