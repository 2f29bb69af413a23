"""Time on a device or a link: what is booked, and the gaps between."""

from bisect import bisect_left, bisect_right
from math import inf


class BusyIntervals:
    """When a device or a link is busy, in order; what takes no time counts, so that nothing is put around it."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._gap_starts: list[int] = [0]
        self._gap_ends: list[float] = [inf]

    def earliest(self, arrival: int, ticks: int) -> int:
        """The first moment from `arrival` on at which an op of this length fits."""
        if ticks:
            position = bisect_right(self._gap_ends, arrival)
            while True:
                begin = max(arrival, self._gap_starts[position])
                if begin + ticks <= self._gap_ends[position]:
                    return begin
                position += 1
        position = bisect_left(self.starts, arrival)
        return max(arrival, self.ends[position - 1]) if position else arrival

    def insert(self, begin: int, end: int) -> None:
        """Book the time from begin to end, which must be free."""
        position = bisect_right(self.starts, begin)
        while position and self.ends[position - 1] > begin:
            position -= 1
        self.starts.insert(position, begin)
        self.ends.insert(position, end)
        self._split_gap(begin, end)

    def _split_gap(self, begin: int, end: int) -> None:
        """Leave of the gap around a booked time what is before and after it; gaps of no length are not kept."""
        position = bisect_right(self._gap_starts, begin) - 1
        if position < 0 or self._gap_ends[position] <= begin:
            return
        first, last = self._gap_starts[position], self._gap_ends[position]
        parts = [(a, b) for a, b in ((first, begin), (end, last)) if a < b]
        self._gap_starts[position : position + 1] = [a for a, _ in parts]
        self._gap_ends[position : position + 1] = [b for _, b in parts]
