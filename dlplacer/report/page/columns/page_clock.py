"""Seconds as whole numbers of a unit that suits the longest schedule of a page."""

import math
from collections.abc import Iterable

_DIGITS = 9


class PageClock:
    """Times of at most nine digits: below a billionth of the step, of which no one sees anything.

    Parameters
    ----------
    span_s
        The longest time that it has to say.
    """

    def __init__(self, span_s: float) -> None:
        self._exponent = math.floor(math.log10(span_s)) + 1 - _DIGITS if span_s > 0 else -_DIGITS

    @property
    def unit_s(self) -> float:
        """How many seconds the unit lasts: a power of ten."""
        return float(f"1e{self._exponent}")

    def of(self, time_s: float) -> int:
        """The time in units."""
        return round(time_s / self.unit_s)

    def all_of(self, times_s: Iterable[float]) -> list[int]:
        """As `of`, one by one."""
        return [round(time_s / self.unit_s) for time_s in times_s]
