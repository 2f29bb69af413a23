"""Independent searches side by side.

CP-SAT gains little from a second worker on models of some dozen ops: a solve of Inception-V3 with colocated gradients
took 31 s with one and 29 with two, and its segments half the time side by side.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Event

from dlplacer.solvers.instance.time_limit import ends_when


def side_by_side(tasks: Sequence[Callable[[int], object]], workers: int) -> None:
    """Run tasks in threads, as many at once as there are workers, the first ones first, and wait for all.

    Parameters
    ----------
    tasks
        Each is told how many workers it has. They end in time by themselves, and hear of the limits around.

    Raises
    ------
    Exception
        Whatever a task raises; for those that run then, time is up, and the others do not begin.
    """
    at_once = min(workers, len(tasks))
    if at_once <= 1:
        for task in tasks:
            task(workers)
        return
    pool, failed = ThreadPoolExecutor(at_once), Event()
    try:
        # `ask_time` reads a context variable, which threads do not inherit.
        running = [pool.submit(copy_context().run, _run, task, workers // at_once, failed) for task in tasks]
        for one in running:
            one.result()
    except BaseException:
        failed.set()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _run(task: Callable[[int], object], workers: int, failed: Event) -> None:
    """Run a task for which time is up when another one fails; that one's exception counts then, and not this one's."""
    if failed.is_set():
        return
    try:
        with ends_when(failed.is_set):
            task(workers)
    except BaseException:
        if not failed.is_set():
            failed.set()
            raise
