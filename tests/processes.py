"""Several processes for one test: forked, joined by gloo, ended after a time limit that only a hang exceeds."""

from collections.abc import Callable
from typing import Any
from unittest import mock

from dlplacer.distributed import launch as launch_module
from dlplacer.distributed.launch import launch


def run_ranks(count: int, work: Callable[[int], Any], limit_s: float = 240.0) -> list[Any]:
    """What `work(rank)` returns on every rank of a new group, or ("error", type name, message), or ("ended",).

    When one fails, the others have as long as they need to end by themselves: a busy machine is slow.
    """
    found: list[Any] = []
    with mock.patch.object(launch_module, "_GRACE_S", limit_s):
        outcomes = launch(count, work, limit_s)
    for outcome in outcomes:
        if outcome.error is None:
            found.append(outcome.result)
        elif outcome.error[0] == "ended":
            found.append(("ended",))
        else:
            found.append(("error", *outcome.error))
    return found
