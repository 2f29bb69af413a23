"""Progress on a terminal, and Ctrl-C that keeps the best plan."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dlplacer.core.units import format_seconds
from dlplacer.planning.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from dlplacer.solvers.instance.outcome import Progress


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; a second one interrupts at once."""
    stop = threading.Event()
    with stop_on_interrupt(stop, _announce):
        yield stop


@contextlib.contextmanager
def giving_up() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, after which nothing new is begun; a second one interrupts at once."""
    stop = threading.Event()

    def say() -> None:
        print("\ndlplacer: giving up after the solve at hand; once more to give up at once", file=sys.stderr)

    with stop_on_interrupt(stop, say):
        yield stop


def _announce() -> None:
    print("\ndlplacer: stopping with the best plan so far; once more to give up", file=sys.stderr)


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[["Progress"], None]]:
    """A function that shows incumbent, bound and gap on one line of a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.status import Status

    with Status("solving", console=Console(stderr=True)) as status:
        yield lambda progress: status.update(_text(progress))


@contextlib.contextmanager
def count_line(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how many of all are done on one line of a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.status import Status

    with Status(what, console=Console(stderr=True)) as status:
        yield lambda done, total: status.update(f"{done} of {total} {what}")


def _text(progress: "Progress") -> str:
    best = "none yet" if progress.makespan_s is None else format_seconds(progress.makespan_s)
    gap = "" if progress.gap is None else f"  gap {100 * progress.gap:.2f} %"
    return f"best {best}  bound {format_seconds(progress.lower_bound_s)}{gap}  after {progress.elapsed_s:.0f} s"
