"""Progress on stderr, and Ctrl-C that keeps the best plan.

On a terminal a line is kept up to date; elsewhere one is written every ten seconds. Both say how long it has taken and
how long it is expected to take. Commands that end within two seconds say nothing.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import TYPE_CHECKING, Protocol

from dlplacer.cli.output.verbosity import QUIET, VERBOSE, verbosity
from dlplacer.core.units import format_duration, format_seconds
from dlplacer.planning.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from rich.text import Text

    from dlplacer.solvers.instance.outcome import Progress

FIRST_AFTER_S = 2.0
LINE_EVERY_S = 10.0
_shown: "list[_Line]" = []
_LEAST_SHARE = 0.02
"""Less than this done says nothing of how long the rest takes."""


class Show(Protocol):
    """Says what a command is at, and how much of all is done where that is known."""

    def __call__(self, text: str, share: float | None = None) -> None: ...


class _Line:
    """The text of the moment, as of when it is asked for."""

    def __init__(self, what: str, limit_s: float | None) -> None:
        self.what, self.limit_s = what, limit_s
        self.began = time.monotonic()
        self.text, self.share = "", None

    text: str
    share: float | None

    def show(self, text: str, share: float | None = None) -> None:
        """Change it; with ``-v`` every change is a line of its own."""
        changed = text != self.text
        self.text, self.share = text, share
        if changed and verbosity() >= VERBOSE:
            print(f"dlplacer: {self}", file=sys.stderr)

    def __str__(self) -> str:
        elapsed_s = time.monotonic() - self.began
        expected_s = self.limit_s
        if self.share is not None and self.share >= _LEAST_SHARE:
            expected_s = elapsed_s / min(1.0, self.share)
        times = format_duration(elapsed_s)
        if expected_s is not None:
            times += f" of about {format_duration(max(expected_s, elapsed_s))}"
        return ": ".join(part for part in (self.what, self.text) if part) + f" ({times})"

    def __rich__(self) -> "Text":
        from rich.text import Text

        return Text("" if time.monotonic() - self.began < FIRST_AFTER_S else str(self))


@contextlib.contextmanager
def interruptible(announcement: str = "stopping with the best plan so far; once more to give up") -> Iterator[Event]:
    """An event that the first Ctrl-C sets, with an announcement; a second one interrupts at once."""
    stop = Event()
    with stop_on_interrupt(stop, lambda: print(f"\ndlplacer: {announcement}", file=sys.stderr)):
        yield stop


@contextlib.contextmanager
def progress(what: str, limit_s: float | None = None) -> Iterator[Show]:
    """A function that says what the command is at.

    Parameters
    ----------
    limit_s
        How long it is expected to take, where no share of the work tells more.
    """
    if _shown:
        # One line is enough: what happens inside of something else is its text.
        outer = _shown[-1]
        outer.show(what, outer.share)
        yield lambda text, share=None: outer.show(f"{what}: {text}", outer.share)
        return
    line = _Line(what, limit_s)
    _shown.append(line)
    try:
        with contextlib.nullcontext() if verbosity() <= QUIET else _live(line) if sys.stderr.isatty() else _lines(line):
            yield line.show
    finally:
        _shown.remove(line)


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


@contextlib.contextmanager
def progress_line(what: str = "solving", limit_s: float | None = None) -> Iterator[Callable[["Progress"], None]]:
    """A function that shows incumbent, bound and gap."""
    with progress(what, limit_s) as show:
        yield lambda found: show(_text(found))


@contextlib.contextmanager
def count_line(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how many of all are done."""
    with progress(what) as show:
        yield lambda done, total: show(f"{done} of {total}", done / total if total else None)


@contextlib.contextmanager
def trainings_line() -> Iterator[Callable[[int, int, int, float], None]]:
    """A function that shows how far a training is."""
    with progress("trainings") as show:
        yield lambda workers, seed, epoch, metric: show(
            f"{workers} workers, seed {seed}: epoch {epoch}" + ("" if metric != metric else f", metric {metric:.4g}")
        )


def _text(found: "Progress") -> str:
    best = "none yet" if found.makespan_s is None else format_seconds(found.makespan_s)
    gap = "" if found.gap is None else f"  gap {100 * found.gap:.2f} %"
    return f"best {best}  bound {format_seconds(found.lower_bound_s)}{gap}"
