"""Several processes for one test: forked, joined by gloo, ended after a time limit."""

from collections.abc import Callable
from typing import Any

from dlplacer.distributed.launch import launch


def run_ranks(count: int, work: Callable[[int], Any], limit_s: float = 60.0) -> list[Any]:
    """What `work(rank)` returns on every rank of a new group, or ("error", type name, message), or ("ended",)."""
    found: list[Any] = []
    for outcome in launch(count, work, limit_s):
        if outcome.error is None:
            found.append(outcome.result)
        elif outcome.error[0] == "ended":
            found.append(("ended",))
        else:
            found.append(("error", *outcome.error))
    return found
