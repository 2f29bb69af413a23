"""Gaps on a device against a search through every moment."""

from random import Random

import pytest

from dlplacer.solvers.instance.busy_intervals import BusyIntervals


def _earliest(booked: list[tuple[int, int]], arrival: int, ticks: int) -> int:
    """The first moment at which nothing booked is overlapped, and nothing is strictly inside something else."""
    begin = arrival
    while any((begin < b and a < begin + ticks) or (ticks and a == b and begin < a < begin + ticks) for a, b in booked):
        begin += 1
    return begin


@pytest.mark.parametrize("seed", range(5))
def test_the_earliest_gap_is_found(seed: int) -> None:
    random, resource, booked = Random(seed), BusyIntervals(), []
    for _ in range(60):
        arrival, ticks = random.randrange(60), random.choice([0, 0, 1, 2, 3, 5])
        begin = resource.earliest(arrival, ticks)
        assert begin == _earliest(booked, arrival, ticks)
        if random.random() < 0.7:
            resource.insert(begin, begin + ticks)
            booked.append((begin, begin + ticks))


def test_books_far_ahead_leave_gaps() -> None:
    resource = BusyIntervals()
    resource.insert(10, 12)
    resource.insert(4, 4)
    # Free are 0-4, 4-10 and from 12 on; nothing may be put around the op of no time at 4.
    assert [resource.earliest(0, ticks) for ticks in (4, 5, 6, 7)] == [0, 4, 4, 12]
    assert resource.earliest(3, 2) == 4
    assert resource.earliest(11, 0) == 12
