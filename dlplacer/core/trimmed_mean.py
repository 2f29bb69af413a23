"""What stands for repeated timings of a whole step."""

from collections.abc import Sequence
from statistics import fmean


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean of repetitions less an eighth of them, rounded up, at either end; of one or two their mean.

    Where a machine alternates between two speeds the median is one of them, by chance, and what lies between the
    quartiles depends on chance more than the mean of all does: over 40 rounds of short steps that took up to twice as
    long at times, predicted and measured steps were apart by 6 % with medians, 4.3 % with means between the quartiles,
    3.8 % with these (standard deviations).
    """
    cut = -(-len(values) // 8) if len(values) > 2 else 0
    return fmean(sorted(values)[cut : len(values) - cut])
