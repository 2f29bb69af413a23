"""Tasks side by side: all run, each knows its workers, and what one raises is heard."""

from collections.abc import Callable
from functools import partial
from threading import Barrier

import pytest

from dlplacer.solvers.instance.side_by_side import side_by_side
from dlplacer.solvers.instance.time_limit import OutOfTimeError, ask_time, ends_when


@pytest.mark.parametrize(("count", "workers", "each"), [(1, 8, 8), (3, 1, 1), (5, 2, 1), (2, 9, 4), (0, 4, 0)])
def test_all_run_with_an_equal_share_of_the_workers(count: int, workers: int, each: int) -> None:
    heard: list[tuple[int, int]] = []

    def task(number: int, own: int) -> None:
        heard.append((number, own))

    side_by_side([partial(task, number) for number in range(count)], workers)
    assert sorted(heard) == [(number, each) for number in range(count)]


def test_two_run_at_once() -> None:
    meeting = Barrier(2)
    side_by_side([lambda own: meeting.wait(10.0)] * 2, 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_task_raises_is_heard(workers: int) -> None:
    def fails(own: int) -> None:
        raise RuntimeError("this one")

    tasks: list[Callable[[int], object]] = [lambda own: None, fails, lambda own: None]
    with pytest.raises(RuntimeError, match="this one"):
        side_by_side(tasks, workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_limits_around_hold_inside(workers: int) -> None:
    with pytest.raises(OutOfTimeError), ends_when(lambda: True):
        side_by_side([lambda own: ask_time()] * 2, workers)
