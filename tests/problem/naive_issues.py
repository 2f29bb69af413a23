"""Processes that run ahead of their devices, moment by moment in whole seconds."""

from collections import deque
from collections.abc import Hashable, Iterable

LONG_S = 10_000


def naive_issues(ops: Iterable[tuple[str, Hashable, int]]) -> dict[str, int]:
    """Op → when its process has issued it, for (op, process, seconds) in the order in which a process takes them."""
    left: dict[Hashable, deque[tuple[str, int]]] = {}
    for op, process, seconds in ops:
        left.setdefault(process, deque()).append((op, seconds))
    issued: dict[str, int] = {}
    for queue in left.values():
        spent = 0
        for now in range(LONG_S):
            if not queue:
                break
            while queue and spent >= queue[0][1]:
                op, seconds = queue.popleft()
                spent -= seconds
                issued[op] = now
            spent += 1
    return issued
