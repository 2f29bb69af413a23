"""Solvers in a thread of their own, so that the main thread hears Ctrl-C and can leave one behind."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from dlplacer.solvers.instance.time_limit import count_work, counts_work, in_own_thread, unheard

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Found = TypeVar("Found")


@dataclass(frozen=True)
class ThreadParams:
    """Settings of waiting for a thread.

    Attributes
    ----------
    poll_s
        Seconds between looks at the clock, at `Budget.stop` and at new solutions: what a user notices as immediate.
    grace_share, grace_s
        Share of the limit and seconds that a solver may overrun before it is left behind: presolve looks at the clock
        rarely.
    seconds_of_work
        Seconds that one deterministic second of CP-SAT's work takes. Measured as 3 to 7 on segments.
    """

    poll_s: float = 0.05
    grace_share: float = 0.02
    grace_s: float = 0.2
    seconds_of_work: float = 4.0


PARAMS = ThreadParams()


def in_thread(work: Callable[[], Found], seconds: float, look: Callable[[], bool], end: Callable[[], object]) -> Found:
    """The result of some work that a thread does.

    Parameters
    ----------
    seconds
        Limit of the work.
    look
        Called every now and then; whether the work shall end.
    end
        Asks the work to end, which it may do late.

    Raises
    ------
    TimeoutError
        If the work does not end in time. It goes on in its thread, and nobody hears of it.
    """
    running = Future[Found]()
    if counts_work():
        # Its own thread counts what it does, and how often this one looks hangs on the machine.
        work, look, seconds = in_own_thread(work), unheard(look), math.inf
    began = time.monotonic()
    stop_at = began + seconds
    leave_at = stop_at + PARAMS.grace_share * seconds + PARAMS.grace_s
    Thread(target=_run, args=(work, running), daemon=True).start()
    while not running.done():
        now = time.monotonic()
        if now > leave_at:
            raise TimeoutError
        wait((running,), PARAMS.poll_s)
        if look() or now > stop_at:
            end()
    return running.result()


def limit(solver: "cp_model.CpSolver", seconds: float, work: float = math.inf) -> None:
    """Have a solver of one worker end after so many seconds of the clock, or so many of CP-SAT's deterministic ones."""
    if counts_work():
        work = min(work, seconds / PARAMS.seconds_of_work)
    else:
        solver.parameters.max_time_in_seconds = seconds
    solver.parameters.max_deterministic_time = work


def solve_in_thread(
    solver: "cp_model.CpSolver",
    model: "cp_model.CpModel",
    seconds: float,
    look: Callable[[], bool],
    listener: "cp_model.CpSolverSolutionCallback | None" = None,
) -> "cp_model.CpSolverStatus | None":
    """The status with which CP-SAT ends; None if it does not heed its limits and is left behind."""
    try:
        status = in_thread(lambda: solver.solve(model, listener), seconds, look, solver.stop_search)
    except TimeoutError:
        return None
    count_work(PARAMS.seconds_of_work * solver.deterministic_time)
    return status


def _run(work: Callable[[], Found], running: "Future[Found]") -> None:
    try:
        running.set_result(work())
    except BaseException as error:
        running.set_exception(error)
