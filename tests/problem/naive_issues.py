"""Processes that run ahead of their devices, moment by moment in whole seconds."""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from dlplacer.core.op import Edge

LONG_S = 10_000


@dataclass(frozen=True)
class Call:
    """What a thread asks its process for; None: for nothing, it only passes."""

    kind: str
    what: Hashable
    seconds: int | None


def calls_of(
    ops: Iterable[tuple[str, int | None]],
    here: str,
    placement: dict[str, str],
    edges: Sequence[Edge],
    seconds: int,
    received: set[str],
) -> list[Call]:
    """What the thread of a device asks for; ops are (name, seconds of its issue) in order.

    A tensor of another device is received before the first op that reads it, and sent behind the op that makes it, once
    to each device. What is in `received` is there already.
    """
    calls: list[Call] = []
    for op, issue_s in ops:
        for edge in edges:
            if edge.target == op and placement[edge.source] != here and edge.tensor not in received:
                received.add(edge.tensor)
                calls.append(Call("receive", (edge.tensor, here), seconds))
        calls.append(Call("op", op, issue_s))
        for edge in edges:
            there = placement[edge.target]
            send = Call("send", (edge.tensor, there), seconds)
            if edge.source == op and there != here and send not in calls:
                calls.append(send)
    return calls


def naive_issues(calls: Sequence[Sequence[Call]], process: Sequence[Hashable]) -> dict[tuple[str, Hashable], int]:
    """(Kind, what) → when it has been issued, for the calls of each thread and its process."""
    host = _Host([deque(each) for each in calls], process)
    for now in range(LONG_S):
        while host.someone_comes(now) or host.someone_is_served(now):
            pass
        if not any(host.left):
            break
    return host.issued


class _Host:
    """Threads, and those that stand in line for their process."""

    def __init__(self, left: list[deque[Call]], process: Sequence[Hashable]) -> None:
        self.left, self.process = left, process
        self.will_be_sent = {call.what for calls in left for call in calls if call.kind == "send"}
        self.busy_until = [0] * len(left)
        self.process_busy_until = dict.fromkeys(process, 0)
        self.line: list[tuple[int, int]] = []
        self.issued: dict[tuple[str, Hashable], int] = {}

    def someone_comes(self, now: int) -> bool:
        """Threads that are idle take their next call to the line, but wait before it for what they receive."""
        coming = [thread for thread in range(len(self.left)) if self._may_ask(thread, now)]
        for thread in coming:
            if self.left[thread][0].seconds is None:
                self._note(thread, now)
            else:
                self.line.append((now, thread))
        return bool(coming)

    def someone_is_served(self, now: int) -> bool:
        """Who came first to a process that is idle is served."""
        for came, thread in sorted(self.line):
            process = self.process[thread]
            if self.process_busy_until[process] <= now:
                self.line.remove((came, thread))
                until = now + (self.left[thread][0].seconds or 0)
                self.process_busy_until[process] = until
                self._note(thread, until)
                return True
        return False

    def _may_ask(self, thread: int, now: int) -> bool:
        if not self.left[thread] or self.busy_until[thread] > now or any(thread == each for _, each in self.line):
            return False
        call = self.left[thread][0]
        sent = self.issued.get(("send", call.what), now + 1) <= now
        return call.kind != "receive" or call.what not in self.will_be_sent or sent

    def _note(self, thread: int, when: int) -> None:
        call = self.left[thread].popleft()
        self.busy_until[thread] = when
        self.issued[call.kind, call.what] = when
