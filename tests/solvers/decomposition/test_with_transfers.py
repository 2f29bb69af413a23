"""Schedules that segments make up: those near the best one get better orders before another round of them."""

import time

import pytest
from solvers.helpers import make_graph, make_machine

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition import with_transfers
from dlplacer.solvers.decomposition.segments import find_segments
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.with_transfers import TransferSearch, _Offers
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


@pytest.mark.parametrize("near", [True, False])
def test_segments_are_placed_anew_while_that_leads_near_the_best(near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"j0": 1.0, "a": 8.0, "b": 9.0, "j1": 1.0, "c": 8.0, "d": 9.0, "j2": 1.0}
    edges = [("j0", "a", 2), ("j0", "b", 2), ("a", "j1", 2), ("b", "j1", 2)]
    edges += [("j1", "c", 2), ("j1", "d", 2), ("c", "j2", 2), ("d", "j2", 2)]
    instance = build_instance(build_problem(make_graph(times, edges), make_machine(2), Options()))
    listed = in_sequence(instance, [0] * instance.op_count, instance.order)
    budget = Budget(time.monotonic() + 30)
    incumbent = Incumbent(budget)
    asked: list[int] = []

    def found(chain: SegmentChain, slack: float, work: float, seed: int, known: object) -> list[Schedule]:
        asked.append(seed)
        time.sleep(0.01)
        # As where the time ends in the midst of the last series.
        return [listed] if near and len(asked) != 3 else []

    # One device is no proven optimum, so the search goes on.
    monkeypatch.setattr(SegmentChain, "candidates", lambda _: [listed])
    monkeypatch.setattr(with_transfers, "low_traffic", found)
    segments = find_segments(instance, instance.op_count - 1)
    assert len(segments) > 1
    search = TransferSearch(SegmentChain.of(instance, segments, budget), incumbent)
    search.draw_anew(time.monotonic() + 0.2)
    assert not asked
    search.run(lower_bounds(instance), time.monotonic() + 10)
    known = len(asked)
    assert known == (3 if near else 1)
    search.draw_anew(time.monotonic() + 0.2)
    assert (len(asked) > known + 2) == near
    assert len(set(asked)) == len(asked)
