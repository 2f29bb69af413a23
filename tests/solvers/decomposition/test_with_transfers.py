"""Schedules that segments make up: those near the best one get better orders before another round of them."""

import time

import pytest
from solvers.helpers import make_graph, make_machine

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.decomposition.with_transfers import _Offers
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.instance.schedule import Schedule, in_sequence


@pytest.mark.parametrize(
    ("known", "swap_s", "best"),
    [
        pytest.param(None, 10.0, 140, id="the best"),
        pytest.param(221, 10.0, 140, id="near the best"),
        pytest.param(221, 0.0, 221, id="no time"),
        pytest.param(200, 10.0, 200, id="far from the best"),
    ],
)
def test_orders_of_a_schedule_near_the_best_are_improved(known: int | None, swap_s: float, best: int) -> None:
    # As in the tests of these orders: 222 s where the tensor of b is sent first, 140 the other way round.
    graph = make_graph({"a": 10.0, "b": 81.0, "r": 10.0, "s": 11.0}, [("b", "r", 20), ("a", "s", 100)])
    problem = build_problem(graph, make_machine(2), Options())
    instance, tick_s = build_instance(problem), float(problem.tick_s)
    listed = in_sequence(instance, [0, 0, 1, 1], range(4))
    incumbent = Incumbent(Budget(time.monotonic() + 30))
    if known is not None:
        incumbent.offer(Schedule(listed.device, listed.start, round(known / tick_s), listed.transfers))
    offers = _Offers(instance, incumbent, swap_s)
    assert offers.offer([listed], 0.05) == (known != 200)
    assert incumbent.best is not None
    assert incumbent.best.makespan * tick_s == pytest.approx(best)
