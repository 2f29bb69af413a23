"""Tasks side by side: all run, each knows its workers, and what one raises is heard."""

import time
from collections.abc import Callable
from threading import Barrier, Event

import pytest

from dlplacer.solvers.instance.side_by_side import side_by_side
from dlplacer.solvers.instance.time_limit import OutOfTimeError, ask_time


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_task_raises_is_heard(workers: int) -> None:
    def fails(own: int) -> None:
        raise RuntimeError("this one")

    tasks: list[Callable[[int], object]] = [lambda own: None, fails, lambda own: None]
    with pytest.raises(RuntimeError, match="this one"):
        side_by_side(tasks, workers)


def test_where_one_fails_time_is_up_for_the_others() -> None:
    meeting, ended = Barrier(2), Event()
    begun: list[int] = []

    def waits(own: int) -> None:
        begun.append(own)
        meeting.wait(10.0)
        try:
            until = time.monotonic() + 10.0
            while time.monotonic() < until:
                ask_time()
        except OutOfTimeError:
            ended.set()
            raise

    def fails(own: int) -> None:
        meeting.wait(10.0)
        raise RuntimeError("this one")

    with pytest.raises(RuntimeError, match="this one"):
        side_by_side([waits, fails, waits, waits], 2)
    assert ended.wait(10.0)
    assert len(begun) == 1, "those that had not begun do not begin"
