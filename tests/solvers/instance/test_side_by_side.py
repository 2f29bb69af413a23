"""Tasks side by side: all run, each knows its workers, and what one raises is heard."""

from collections.abc import Callable

import pytest

from dlplacer.solvers.instance.time_limit import side_by_side


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_task_raises_is_heard(workers: int) -> None:
    def fails(own: int) -> None:
        raise RuntimeError("this one")

    tasks: list[Callable[[int], object]] = [lambda own: None, fails, lambda own: None]
    with pytest.raises(RuntimeError, match="this one"):
        side_by_side(tasks, workers)
