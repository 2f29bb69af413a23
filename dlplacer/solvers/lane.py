"""Time on a device or a link: what is booked, and the gaps between."""

from bisect import bisect_left, bisect_right


class Lane:
    """When a device or a link is busy, in order; what takes no time counts, so that nothing is put around it."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def earliest(self, arrival: int, ticks: int) -> int:
        """The first moment from `arrival` on at which an op of this length fits."""
        position = bisect_left(self.starts, arrival)
        begin = max(arrival, self.ends[position - 1]) if position else arrival
        while position < len(self.starts) and begin + ticks > self.starts[position]:
            begin = max(begin, self.ends[position])
            position += 1
        return begin

    def insert(self, begin: int, end: int) -> None:
        """Book the time from begin to end, which must be free."""
        position = bisect_right(self.starts, begin)
        while position and self.ends[position - 1] > begin:
            position -= 1
        self.starts.insert(position, begin)
        self.ends.insert(position, end)
