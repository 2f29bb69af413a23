"""Medians and quartiles of repeated timings."""

from collections.abc import Mapping, Sequence
from statistics import median
from statistics import quantiles as cut_points

OpTimes = Mapping[str, float]
"""Op id → seconds, in one step on one device."""


def typical(recorded: Sequence[OpTimes], whole_s: Sequence[float] | None = None) -> dict[str, float]:
    """Op id → median seconds, in proportion so that all ops together take a median step.

    An op's own median misses delays that are rare for an op and certain for a step. A step takes `whole_s` if it was
    not recorded: recording costs microseconds per op, and no op is compiled then.
    """
    medians = {op: median(times[op] for times in recorded) for op in recorded[0]}
    whole_s = [sum(times.values()) for times in recorded] if whole_s is None else whole_s
    total_s = sum(medians.values())
    scale = median(whole_s) / total_s if total_s else 1.0
    return {op: scale * seconds for op, seconds in medians.items()}


def settled(times: Sequence[float]) -> float:
    """Median of a single action's repetitions behind the first quarter, in which caches, threads and links warm up."""
    return float(median(times[len(times) // 4 :]))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, between neighbours in proportion; of one value that value twice."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = cut_points(values, n=4, method="inclusive")
    return low, high
