"""The links while a timetable is made: each parcel goes by the way on which it arrives first."""

from collections.abc import Sequence

from dlplacer.solvers.instance import FAR
from dlplacer.solvers.lane import Lane
from dlplacer.traffic import Parcel, Send, Traffic, Way


class Links:
    """What is sent so far.

    Attributes
    ----------
    there
        (parcel, device) → when it is there, if it has been sent.
    sends
        In the order in which they were planned.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.lanes = [Lane() for _ in range(traffic.ways.lane_count)]
        self.there: dict[tuple[int, int], int] = {}
        self.sends: list[Send] = []

    def send_inputs(self, op: int, device: Sequence[int], end: Sequence[int]) -> int:
        """When all that an op reads from other devices is there, sent now if it has not been.

        Parameters
        ----------
        device, end
            [op] → device and end tick of those that are scheduled.
        """
        if op >= len(self.traffic.reads):
            return 0
        here, parcels = device[op], self.traffic.parcels
        remote = [number for number in self.traffic.reads[op] if device[parcels[number].source] != here]
        latest = 0
        for number in sorted(remote, key=lambda number: end[parcels[number].source]):
            if (number, here) not in self.there:
                source = parcels[number].source
                self.there[number, here] = self._send(number, parcels[number], device[source], here, end[source])
            latest = max(latest, self.there[number, here])
        return latest

    def expect_inputs(self, op: int, target: int, site: Sequence[int], block: Sequence[int], end: Sequence[int]) -> int:
        """When all that an op reads would be on a device if it were sent now, one parcel not looking at the others.

        Parameters
        ----------
        site, block
            [block] → device, or -1 where undecided, and [op] → block.
        """
        latest = 0
        for number in self.traffic.reads[op] if op < len(self.traffic.reads) else ():
            source = self.traffic.parcels[number].source
            here = site[block[source]]
            if here not in (-1, target):
                latest = max(latest, self.arrival(number, here, target, end[source]))
        return latest

    def arrival(self, number: int, source: int, target: int, ready: int) -> int:
        """When a parcel would be on a device if it were sent now."""
        if (number, target) in self.there:
            return self.there[number, target]
        return self._choose(self.traffic.parcels[number], source, target, ready)[2]

    def _send(self, number: int, parcel: Parcel, source: int, target: int, ready: int) -> int:
        way, start, arrival = self._choose(parcel, source, target, ready)
        for stretch, begin in zip(way, start, strict=True):
            for lane, offset, ticks in stretch.holds:
                self.lanes[lane].insert(begin + offset, begin + offset + ticks)
        self.sends.append(Send(number, target, way, start))
        return arrival

    def _choose(self, parcel: Parcel, source: int, target: int, ready: int) -> tuple[Way, tuple[int, ...], int]:
        ways = self.traffic.ways
        if not ways.joined(parcel.size, source, target):
            return (), (), ready + FAR
        way = ways.quickest(parcel.size, source, target)
        start, arrival = self._times(way, ready)
        if ways.chooses and arrival > ready + sum(stretch.ticks for stretch in way):
            for other in ways.between(parcel.size, source, target)[1:]:
                times = self._times(other, ready)
                if times[1] < arrival:
                    way, (start, arrival) = other, times
        return way, start, arrival

    def _times(self, way: Way, ready: int) -> tuple[tuple[int, ...], int]:
        """Start ticks of the stretches of a way, and when the last one ends."""
        starts = []
        for stretch in way:
            begin, moved = ready, bool(stretch.holds)
            while moved:
                moved = False
                for lane, offset, ticks in stretch.holds:
                    free = self.lanes[lane].earliest(begin + offset, ticks) - offset
                    moved, begin = moved or free > begin, max(begin, free)
            starts.append(begin)
            ready = begin + stretch.ticks
        return tuple(starts), ready
