"""Ops that wait for a device: by arrival while their data are on the way, then by preference."""

from collections.abc import Callable
from heapq import heappop, heappush

Candidate = tuple[int, int, int]
"""When an op can start on a device, its place in the order of preference, and the op."""


class Queue:
    """The ops that may run on one device."""

    def __init__(self) -> None:
        self.waiting: list[Candidate] = []
        self.ready: list[tuple[int, int]] = []

    def push(self, arrival: int, key: int, op: int) -> None:
        """Add an op whose data arrive then."""
        heappush(self.waiting, (arrival, key, op))

    def first(self, free: int, arrival_of: Callable[[int], int | None]) -> Candidate | None:
        """The op that can start first on a device free from that tick on; None if the queue holds no more.

        Parameters
        ----------
        arrival_of
            What is now known of an op's arrival, which can only have become later; None if it has gone elsewhere.
        """
        while self.waiting and self.waiting[0][0] <= free:
            heappush(self.ready, heappop(self.waiting)[1:])
        while self.waiting or self.ready:
            start, key, op = (free, *self.ready[0]) if self.ready else self.waiting[0]
            arrival = arrival_of(op)
            if arrival is not None and arrival <= start:
                return start, key, op
            if self.ready:
                heappop(self.ready)
            else:
                heappop(self.waiting)
            if arrival is not None:
                self.push(arrival, key, op)
        return None
