"""A statistic of times that interruptions can only lengthen."""

from collections.abc import Sequence
from statistics import quantiles


def lower_quartile(times: Sequence[float]) -> float:
    """A quarter of the times are at most this."""
    return quantiles(times, n=4, method="inclusive")[0] if len(times) > 1 else times[0]
