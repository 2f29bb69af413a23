"""Loops end when whoever limits them says so, and only then; what a task beside others raises is heard."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from solvers.helpers import make_graph, make_instance, make_machine

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.heuristics.contiguous import contiguous
from dlplacer.solvers.heuristics.list_rules import by_rank, upward_ranks
from dlplacer.solvers.ilp.ilp_model import build_exact_model
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.time_limit import OutOfTimeError, ask_time, ends_when, side_by_side, within


class Clock:
    """Says that time is up when it has been asked so often."""

    def __init__(self, most: int) -> None:
        self.left = most

    def is_over(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_the_inner_and_the_outer_limit_both_count() -> None:
    with ends_when(lambda: True), ends_when(lambda: False), pytest.raises(OutOfTimeError):
        ask_time()
    with ends_when(lambda: False), ends_when(lambda: True), pytest.raises(OutOfTimeError):
        ask_time()
    assert within(lambda: False, lambda: 7) == 7
    assert within(lambda: True, ask_time) is None


def test_a_heuristic_ends_in_the_middle() -> None:
    names = [f"op{number}" for number in range(30)]
    graph = make_graph(dict.fromkeys(names, 1.0), [(a, b, 1) for a, b in zip(names, names[3:], strict=False)])
    instance = make_instance(graph, make_machine(3))
    priority = by_rank(instance, upward_ranks(instance))
    asked = Clock(10**6)
    assert within(asked.is_over, lambda: contiguous(instance, priority)) is not None
    needed = 10**6 - asked.left
    assert needed >= len(names) - 1
    clock = Clock(needed // 2)
    assert within(clock.is_over, lambda: contiguous(instance, priority)) is None
    assert clock.left == -1


@pytest.mark.parametrize("memory", [None, 30])
def test_building_the_exact_model_ends_in_the_middle(memory: int | None) -> None:
    # 38 ops on 6 devices with all their routes take 3 s to write down, 2 s more than a limit of 5 s allowed.
    names = [f"op{number}" for number in range(8)]
    edges = [(a, b, 1) for a, b in zip(names, names[2:], strict=False)]
    graph = make_graph(dict.fromkeys(names, 1.0), edges, output_bytes=dict.fromkeys(names, 8))
    problem = build_problem(graph, make_machine(4, memory), Options())
    instance = replace(build_instance(problem), sources=frozenset(), sinks=frozenset())
    bounds = lower_bounds(instance, 1.0)

    def build() -> object:
        return build_exact_model(problem, instance, bounds, 8, None, every_route=True)

    asked = Clock(10**6)
    assert within(asked.is_over, build) is not None
    needed = 10**6 - asked.left
    assert needed > 6 * 4 + len(names)
    clock = Clock(needed // 2)
    assert within(clock.is_over, build) is None
    assert clock.left == -1


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_task_raises_is_heard(workers: int) -> None:
    def fails(own: int) -> None:
        raise RuntimeError("this one")

    tasks: list[Callable[[int], object]] = [lambda own: None, fails, lambda own: None]
    with pytest.raises(RuntimeError, match="this one"):
        side_by_side(tasks, workers)
