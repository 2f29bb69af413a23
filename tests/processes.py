"""Several processes for one test: forked, joined by gloo, ended after a time limit that only a hang exceeds."""

import contextlib
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from dlplacer.runtime.distributed import launch as launch_module
from dlplacer.runtime.distributed.launch import launch


def run_ranks(count: int, work: Callable[[int], Any], limit_s: float = 240.0, leaving: int = 0) -> list[Any]:
    """What `work(rank)` returns on every rank of a new group, or ("error", type name, message), or ("ended",).

    However slow the machine is, nobody is cut short: when one fails, the others have as long as they need, and no
    process ends before all are done, as the one that holds the store would take the errors in it along.

    Parameters
    ----------
    leaving
        How many processes end without a word, so that nobody must wait for them.
    """
    done = multiprocessing.get_context("fork").Barrier(count - leaving)

    def to_the_end(rank: int) -> Any:
        try:
            return work(rank)
        finally:
            with contextlib.suppress(threading.BrokenBarrierError):
                done.wait(limit_s / 4)

    found: list[Any] = []
    with mock.patch.object(launch_module, "_GRACE_S", limit_s):
        outcomes = launch(count, to_the_end, limit_s)
    for outcome in outcomes:
        if outcome.error is None:
            found.append(outcome.result)
        elif outcome.error[0] == "ended":
            found.append(("ended",))
        else:
            found.append(("error", *outcome.error))
    return found
