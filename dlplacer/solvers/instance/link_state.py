"""The links while a schedule is made: each transfer request goes by the route on which it arrives first."""

from collections.abc import Iterator, Sequence

from dlplacer.problem.route_table import TimedRoute
from dlplacer.problem.transfers import ScheduledTransfer, Traffic, TransferRequest
from dlplacer.solvers.instance.busy_intervals import BusyIntervals
from dlplacer.solvers.instance.instance import FAR


class LinkState:
    """The transfers so far.

    Attributes
    ----------
    there
        (transfer request, device) → when it is there, if it has been sent.
    transfers
        In the order in which they were planned.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.resources = [BusyIntervals() for _ in range(traffic.routes.resource_count)]
        self.there: dict[tuple[int, int], int] = {}
        self.transfers: list[ScheduledTransfer] = []

    def send_inputs(self, op: int, assigned: Sequence[int], block: Sequence[int], end: Sequence[int]) -> int:
        """When all that an op reads from other devices is there, sent now if it has not been.

        Parameters
        ----------
        assigned, block
            [block] → device, or -1 where undecided, and [op] → block.
        end
            [op] → end tick of those that are scheduled.
        """
        latest, here = 0, assigned[block[op]]
        for ready, number, source in sorted(self._remote(op, here, assigned, block, end)):
            if (number, here) not in self.there:
                self.there[number, here] = self._send(number, source, here, ready)
            latest = max(latest, self.there[number, here])
        return latest

    def expect_inputs(
        self, op: int, target: int, assigned: Sequence[int], block: Sequence[int], end: Sequence[int]
    ) -> int:
        """When all that an op reads would be on a device if it were sent now, each transfer request alone."""
        remote = self._remote(op, target, assigned, block, end)
        return max((self.arrival(number, source, target, ready) for ready, number, source in remote), default=0)

    def _remote(
        self, op: int, target: int, assigned: Sequence[int], block: Sequence[int], end: Sequence[int]
    ) -> Iterator[tuple[int, int, int]]:
        """(end of its producer, number, device of its producer) of each request that an op reads from elsewhere."""
        for number in self.traffic.reads[op] if op < len(self.traffic.reads) else ():
            producer = self.traffic.requests[number].source
            source = assigned[block[producer]]
            if source not in (-1, target):
                yield end[producer], number, source

    def arrival(self, number: int, source: int, target: int, ready: int) -> int:
        """When a transfer request would be on a device if it were sent now."""
        if (number, target) in self.there:
            return self.there[number, target]
        return self._choose(self.traffic.requests[number], source, target, ready)[2]

    def _send(self, number: int, source: int, target: int, ready: int) -> int:
        route, start, arrival = self._choose(self.traffic.requests[number], source, target, ready)
        for segment, begin in zip(route, start, strict=True):
            for resource, offset, ticks in segment.holds:
                self.resources[resource].insert(begin + offset, begin + offset + ticks)
        self.transfers.append(ScheduledTransfer(number, target, route, start))
        return arrival

    def _choose(
        self, request: TransferRequest, source: int, target: int, ready: int
    ) -> tuple[TimedRoute, tuple[int, ...], int]:
        routes = self.traffic.routes
        if not routes.joined(request.size, source, target):
            return (), (), ready + FAR
        route = routes.quickest(request.size, source, target)
        start, arrival = self._times(route, ready)
        if routes.chooses and arrival > ready + sum(segment.ticks for segment in route):
            # Detours are worth a look only where the best route has to wait.
            for other in routes.between(request.size, source, target)[1:]:
                times = self._times(other, ready)
                if times[1] < arrival:
                    route, (start, arrival) = other, times
        return route, start, arrival

    def _times(self, route: TimedRoute, ready: int) -> tuple[tuple[int, ...], int]:
        """Start ticks of the route segments of a route, and when the last one ends."""
        starts = []
        for segment in route:
            begin, moved = ready, bool(segment.holds)
            while moved:
                moved = False
                for resource, offset, ticks in segment.holds:
                    free = self.resources[resource].earliest(begin + offset, ticks) - offset
                    moved, begin = moved or free > begin, max(begin, free)
            starts.append(begin)
            ready = begin + segment.ticks
        return tuple(starts), ready
