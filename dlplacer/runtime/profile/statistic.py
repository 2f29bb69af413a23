"""What stands for repeated timings: one statistic for the ops of whole steps, one for a single action."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from statistics import quantiles as cut_points

OpTimes = Mapping[str, float]
"""Op id → seconds, in one step on one device."""


def typical(samples: Sequence[OpTimes]) -> dict[str, float]:
    """Op id → mean seconds over the middle half of the steps by length, so that the times sum up to a median step.

    What now and then delays an op (another thread holds the interpreter, a core is interrupted) is part of a step and
    is kept in proportion; a step that was disturbed as a whole is left out. An op's own median or quartile would miss
    what is rare for an op but certain for a step: on recurrent models of many small ops a sixth of the time.
    """
    by_length = sorted(samples, key=lambda times: sum(times.values()))
    cut = len(by_length) // 4
    middle = by_length[cut : len(by_length) - cut]
    return {op: fmean(times[op] for times in middle) for op in middle[0]}


def settled(times: Sequence[float]) -> float:
    """Median of a single action's repetitions behind the first quarter, in which caches, threads and links warm up.

    For what is timed in a loop of its own, as a message or a hand-over is: an interruption there belongs to no step,
    so that, unlike in `typical`, it must not count.
    """
    return float(median(times[len(times) // 4 :]))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, between neighbours in proportion; of one value that value twice."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = cut_points(values, n=4, method="inclusive")
    return low, high
