"""Standard streams of a command: notes on stderr and, on a terminal, a line of progress after two seconds."""

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dlplacer.core.errors import InputError
from dlplacer.core.units import format_seconds
from dlplacer.planning.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from rich.text import Text

FIRST_AFTER_S = 2.0
_quiet = False

Show = Callable[..., None]
"""Callback for the progress that a function reports: a text, counts, or the progress of a solve."""


def be_quiet(quiet: bool) -> None:
    """Suppress progress and notes in this process, or print them."""
    global _quiet
    _quiet = quiet


def note(*texts: str | None) -> None:
    """Print notes to stderr unless quiet; None is skipped."""
    for text in filter(None, () if _quiet else texts):
        say(text)


def told_written(*paths: object) -> None:
    """Report written files on stderr unless quiet; None is skipped."""
    for path in filter(None, () if _quiet else paths):
        print(f"wrote {path}", file=sys.stderr)


class _Line:
    """The line of progress, with the time elapsed when it is printed."""

    def __init__(self, what: str, limit_s: float | None) -> None:
        self.what, self.limit_s = what, limit_s
        self.began, self.text = time.monotonic(), ""

    def show(self, *told: Any) -> None:
        """Set the text to the reported progress."""
        self.text = _text_of(told)

    def __str__(self) -> str:
        elapsed_s = time.monotonic() - self.began
        limit = "" if self.limit_s is None else f" of about {timedelta(seconds=round(max(self.limit_s, elapsed_s)))}"
        return ": ".join(filter(None, (self.what, self.text))) + f" ({timedelta(seconds=round(elapsed_s))}{limit})"

    def __rich__(self) -> "Text":
        from rich.text import Text

        return Text("" if time.monotonic() - self.began < FIRST_AFTER_S else str(self))


def _text_of(told: tuple[Any, ...]) -> str:
    """The text for progress that a function reports."""
    match told:
        case (int(done), int(total)):
            return f"{done} of {total}"
        case (int(workers), int(seed), int(epoch), float(metric)):
            return f"{workers} workers, seed {seed}: epoch {epoch}, metric {metric:.4g}"
        case (str(text), *_):
            return text
    (found,) = told
    if hasattr(found, "splits"):
        return f"{len(found.splits)} ops split: {format_seconds(found.split_s)}"
    best = "none yet" if found.makespan_s is None else format_seconds(found.makespan_s)
    gap = "" if found.gap is None else f"  gap {100 * found.gap:.2f} %"
    return f"best {best}  bound {format_seconds(found.lower_bound_s)}{gap}"


@contextlib.contextmanager
def interruptible(announcement: str) -> Iterator[threading.Event]:
    """An event; the first Ctrl-C sets it and prints the announcement, a second Ctrl-C interrupts at once."""
    stop = threading.Event()
    with stop_on_interrupt(stop, lambda: print(f"\ndlplacer: {announcement}", file=sys.stderr)):
        yield stop


@contextlib.contextmanager
def progress(what: str, limit_s: float | None = None) -> Iterator[Show]:
    """A function that shows the command's progress; `limit_s` is the expected time of the work."""
    line = _Line(what, limit_s)
    if _quiet or not sys.stderr.isatty():
        yield line.show
        return
    from rich.console import Console
    from rich.live import Live

    # Twice a second, so that the timing of ops is not disturbed. Only results go to stdout, so it is not redirected.
    with Live(line, console=Console(stderr=True), transient=True, refresh_per_second=2, redirect_stdout=False):
        yield line.show


@contextlib.contextmanager
def usable_streams() -> Iterator[None]:
    """Make the standard streams accept any text during a command; a closed pipe ends the process.

    Characters that the locale's encoding lacks become question marks; text for a stream that is closed is dropped.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    # rich raises SystemExit(1) if nobody reads its tables.
    except (OSError, SystemExit) as ending:
        error = ending if isinstance(ending, OSError) else ending.__context__
        if not isinstance(error, OSError):
            raise
        # Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            say(f"cannot write to stdout: {error.strerror}; the output is incomplete: redirect it elsewhere")
            raise SystemExit(InputError.exit_code) from None
        raise SystemExit(0) from None


def say(text: str) -> None:
    """Print a line to stderr, quiet or not."""
    print(f"dlplacer: {text}", file=sys.stderr, flush=True)
