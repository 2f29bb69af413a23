"""Messages on stderr: notes, progress, and Ctrl-C that keeps the best plan.

On a terminal a line is kept up to date; elsewhere one is written every ten seconds. Both say how long it has taken and
how long it is expected to take. Commands that end within two seconds say nothing.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

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


def note(text: str) -> None:
    """Tell the user something on stderr, unless it shall be quiet."""
    if _level > QUIET:
        print(f"dlplacer: {text}", file=sys.stderr)


def told_written(*paths: object) -> None:
    """Report on stderr the files that were written; None for those that were not asked for."""
    for path in paths:
        if path is not None and _level > QUIET:
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
    if hasattr(found, "ops"):
        return f"{len(found.ops)} ops split: {format_seconds(found.makespan_s)}", None
    best = "none yet" if found.makespan_s is None else format_seconds(found.makespan_s)
    gap = "" if found.gap is None else f"  gap {100 * found.gap:.2f} %"
    return f"best {best}  bound {format_seconds(found.lower_bound_s)}{gap}", None


@contextlib.contextmanager
def interruptible(
    announcement: str = "stopping with the best plan so far; once more to give up",
) -> Iterator[threading.Event]:
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
