"""Tasks side by side: all run, each knows its workers, and what one raises is heard."""

import time
from collections.abc import Callable
from functools import partial
from random import Random
from threading import Barrier, Event

import pytest
from solvers.helpers import make_graph, make_instance, make_machine, no_bounds, one_worker

from dlplacer.solvers.ilp.cp_sat_search import search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Incumbent
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


def test_cp_sat_hears_of_the_limits_around() -> None:
    # One worker does not prove 48 random ops on 5 devices in half a minute.
    random = Random(1)
    names = [f"k{number}" for number in range(48)]
    edges = [(random.choice(names[:place]), names[place], 3) for place in range(1, 48) for _ in range(2)]
    graph = make_graph({name: random.randint(5, 99) for name in names}, list(dict.fromkeys(edges)))
    instance = make_instance(graph, make_machine(5))
    incumbent = Incumbent(one_worker())
    model, variables = build_model(instance, no_bounds(instance), 10**5)
    began = time.monotonic()
    with ends_when(lambda: time.monotonic() > began + 0.5):
        search(model, variables, instance, incumbent, 30.0)
    assert time.monotonic() < began + 10.0
