"""Progress on a terminal, and Ctrl-C that keeps the best plan."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from threading import Event
from typing import TYPE_CHECKING

from dlplacer.core.units import format_seconds
from dlplacer.planning.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from dlplacer.solvers.instance.outcome import Progress


@contextlib.contextmanager
def interruptible(announcement: str = "stopping with the best plan so far; once more to give up") -> Iterator[Event]:
    """An event that the first Ctrl-C sets, with an announcement; a second one interrupts at once."""
    stop = Event()
    with stop_on_interrupt(stop, lambda: print(f"\ndlplacer: {announcement}", file=sys.stderr)):
        yield stop


@contextlib.contextmanager
def _line(first: str) -> Iterator[Callable[[str], None]]:
    """A function that replaces the text of one line of a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.status import Status

    with Status(first, console=Console(stderr=True)) as status:
        yield status.update


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[["Progress"], None]]:
    """A function that shows incumbent, bound and gap on one line of a terminal; silent elsewhere."""
    with _line("solving") as show:
        yield lambda progress: show(_text(progress))


@contextlib.contextmanager
def count_line(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how many of all are done on one line of a terminal; silent elsewhere."""
    with _line(what) as show:
        yield lambda done, total: show(f"{done} of {total} {what}")


@contextlib.contextmanager
def trainings_line() -> Iterator[Callable[[int, int, int, float], None]]:
    """A function that shows how far a training is on one line of a terminal; silent elsewhere."""
    with _line("trainings") as show:
        yield lambda workers, seed, epoch, metric: show(
            f"{workers} workers, seed {seed}: epoch {epoch}" + ("" if metric != metric else f", metric {metric:.4g}")
        )


def _text(progress: "Progress") -> str:
    best = "none yet" if progress.makespan_s is None else format_seconds(progress.makespan_s)
    gap = "" if progress.gap is None else f"  gap {100 * progress.gap:.2f} %"
    return f"best {best}  bound {format_seconds(progress.lower_bound_s)}{gap}  after {progress.elapsed_s:.0f} s"
