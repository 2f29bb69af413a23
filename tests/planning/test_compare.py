"""compare: all methods on one problem, judged by the best bound."""

import pytest
from solvers.helpers import make_graph, make_machine

from dlplacer.check import violations
from dlplacer.core.errors import InternalError
from dlplacer.planning.compare import compare
from dlplacer.problem.problem import Problem
from dlplacer.solvers.heuristics.single_device import best_single
from dlplacer.solvers.instance.schedule import Budget, Outcome
from dlplacer.solvers.methods import METHODS

DIAMOND = make_graph(
    {"a": 1, "b": 2, "c": 2, "d": 1},
    [("a", "b", 1), ("a", "c", 1), ("b", "d", 1), ("c", "d", 1)],
    output_bytes=dict.fromkeys("abcd", 2),
)
FAST = make_machine(2, rate=10.0)


def test_every_method_is_run_and_judged() -> None:
    comparison = compare(DIAMOND, FAST, time_limit_s=120.0, workers=1)
    rows = {row.method: row for row in comparison.rows}
    assert set(rows) == set(METHODS) - {"dlplacer"}, "the program as written is for store-and-forward"
    # a, b on x, c on y. d on x: 1 + 0.1 + 2 + 0.1 + 1 = 4.2. d on y: c ends at 3.1, when b's tensor is there: 4.1.
    assert comparison.single_device_s == pytest.approx(6)
    assert comparison.lower_bound_s == pytest.approx(4.1)
    assert rows["ilp"].makespan_s == pytest.approx(4.1)
    assert rows["single"].makespan_s == pytest.approx(6)
    for row in comparison.rows:
        if row.plan is None:
            assert (row.method, row.status) == ("min-cut", "not installed")
            continue
        assert row.plan.method == row.method
        assert not violations(row.plan)
        assert row.makespan_s == row.plan.makespan_s >= comparison.lower_bound_s - 1e-12
        assert row.status == ("optimal" if row.makespan_s == pytest.approx(4.1) else "feasible")
        assert comparison.speedup(row) == pytest.approx(6 / row.makespan_s)
        assert comparison.gap(row) == pytest.approx(1 - 4.1 / row.makespan_s)


def test_a_heuristic_is_optimal_by_the_bound_of_another_method() -> None:
    graph = make_graph({"a": 9, "b": 5, "c": 5, "d": 5})
    # 9 + 5 | 5 + 5: 14. The area bound says 24/2 = 12 only, and two of three ops together take 10; the ILP proves 14.
    alone = compare(graph, FAST, methods=["heft"])
    assert (alone.rows[0].makespan_s, alone.rows[0].status, alone.lower_bound_s) == (14, "feasible", 12)
    both = compare(graph, FAST, methods=["heft", "ilp"], workers=1)
    assert [(row.makespan_s, row.status) for row in both.rows] == [(14, "optimal"), (14, "optimal")]


def test_a_bound_above_the_plan_of_another_method_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(problem: Problem, budget: Budget) -> Outcome:
        single = best_single(problem)
        assert single is not None
        return Outcome(single, single.makespan)

    monkeypatch.setitem(METHODS, "ilp", wrong)
    with pytest.raises(InternalError, match=r"with method 'ilp' the best lower bound is 6 s, above the 4.[12] s"):
        compare(DIAMOND, FAST, methods=["list", "ilp"])
