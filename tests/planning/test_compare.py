"""compare: all methods on one problem, judged by the best bound."""

from pathlib import Path

import pytest
from solvers.helpers import make_graph, make_machine

from dlplacer.check import violations
from dlplacer.core.errors import InfeasibleError, InputError, InternalError
from dlplacer.core.options import Options
from dlplacer.planning.compare import Comparison, MethodResult, compare
from dlplacer.problem.problem import Problem
from dlplacer.solvers.heuristics.single_device import best_single
from dlplacer.solvers.instance.outcome import Budget, Outcome, Progress
from dlplacer.solvers.methods import METHODS, RULES

DIAMOND = make_graph(
    {"a": 1, "b": 2, "c": 2, "d": 1},
    [("a", "b", 1), ("a", "c", 1), ("b", "d", 1), ("c", "d", 1)],
    output_bytes=dict.fromkeys("abcd", 2),
)
FAST = make_machine(2, rate=10.0)


def _by_method(comparison: Comparison) -> dict[str, MethodResult]:
    return {row.method: row for row in comparison.rows}


def test_every_method_is_run_and_judged() -> None:
    comparison = compare(DIAMOND, FAST, time_limit_s=120.0, workers=1)
    rows = _by_method(comparison)
    assert set(rows) == set(METHODS)
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


def test_the_best_comes_first_and_what_failed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlplacer.planning.compare.available", lambda: False)
    comparison = compare(DIAMOND, FAST, methods=["min-cut", "single", "heft", "list"])
    assert [row.method for row in comparison.rows] == ["heft", "list", "single", "min-cut"]
    assert comparison.rows[-1] == MethodResult("min-cut", "not installed", None, 0.0)
    assert comparison.speedup(comparison.rows[-1]) is None
    assert comparison.gap(comparison.rows[-1]) is None


def test_a_heuristic_is_optimal_by_the_bound_of_another_method() -> None:
    graph = make_graph({"a": 9, "b": 5, "c": 5, "d": 5})
    # 9 + 5 | 5 + 5: 14. The area bound says 24/2 = 12 only, and two of three ops together take 10; the ILP proves 14.
    alone = compare(graph, FAST, methods=["heft"])
    assert (alone.rows[0].makespan_s, alone.rows[0].status, alone.lower_bound_s) == (14, "feasible", 12)
    both = compare(graph, FAST, methods=["heft", "ilp"], workers=1)
    assert [(row.makespan_s, row.status) for row in both.rows] == [(14, "optimal"), (14, "optimal")]


def test_single_is_infeasible_where_nothing_fits_on_one_device() -> None:
    comparison = compare(DIAMOND, make_machine(2, memory=6, rate=10.0), Options.paper(), methods=["single", "m-etf"])
    rows = _by_method(comparison)
    assert rows["single"].status == "infeasible"
    assert rows["m-etf"].makespan_s is not None
    assert comparison.single_device_s is None
    assert comparison.speedup(rows["m-etf"]) is None


def test_no_plan_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "cpop", lambda instance, priority, fixed: None)
    monkeypatch.setitem(METHODS, "ilp", lambda problem, budget: Outcome(None, 0))
    rows = _by_method(compare(DIAMOND, FAST, methods=["cpop", "ilp"]))
    assert {row.status for row in rows.values()} == {"no plan"}


def test_no_plan_can_exist() -> None:
    with pytest.raises(InfeasibleError, match=r"8 B|8 bytes"):
        compare(DIAMOND, make_machine(2, memory=3), Options.paper())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"methods": ["magic"]}, "no method 'magic'.*ilp.*m-sct"),
        ({"methods": []}, "no method is chosen"),
        ({"time_limit_s": 0.0}, "time limit is 0 s"),
        ({"methods": ["ilp"], "workers": 0}, "workers is 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        compare(DIAMOND, FAST, **arguments)


def test_a_bound_above_a_plan_is_an_internal_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dlplacer.solvers.bounds.bounds import Bounds

    monkeypatch.setattr("dlplacer.planning.compare.lower_bounds", lambda *_: Bounds(10**9, (), ()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InternalError, match=r"lower bound of 100000000 s is above the makespan of 4.1 s"):
        compare(DIAMOND, FAST, methods=["heft"])


def test_a_bound_above_the_plan_of_another_method_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def wrong(problem: Problem, budget: Budget) -> Outcome:
        single = best_single(problem)
        assert single is not None
        return Outcome(single, single.makespan)

    monkeypatch.setitem(METHODS, "ilp", wrong)
    with pytest.raises(InternalError, match=r"with method 'ilp' the best lower bound is 6 s, above the 4.[12] s"):
        compare(DIAMOND, FAST, methods=["list", "ilp"])


def test_progress_tells_the_best_of_all_so_far() -> None:
    told: list[Progress] = []
    comparison = compare(DIAMOND, FAST, methods=["single", "heft", "ilp"], workers=1, on_progress=told.append)
    best = [progress.makespan_s for progress in told]
    bounds = [progress.lower_bound_s for progress in told]
    assert None not in best
    assert best == sorted(best, reverse=True)
    assert bounds == sorted(bounds)
    assert (best[-1], bounds[-1]) == (comparison.rows[0].makespan_s, comparison.lower_bound_s)


def test_repeated_methods_run_once() -> None:
    assert [row.method for row in compare(DIAMOND, FAST, Options.paper(), methods=["heft", "heft"]).rows] == ["heft"]


def test_dict_and_frame() -> None:
    comparison = Comparison(
        (
            MethodResult("ilp", "optimal", 4.0, 1.5),
            MethodResult("heft", "feasible", 5.0, 0.1),
            MethodResult("x", "no plan", None, 2.0),
        ),
        4.0,
        6.0,
    )
    dictionaries = comparison.to_dict()["methods"]
    assert dictionaries[1] == {
        "method": "heft",
        "makespan_s": 5.0,
        "lower_bound_s": 4.0,
        "solve_s": 0.1,
        "status": "feasible",
        "speedup": 1.2,
        "gap": pytest.approx(0.2),
    }
    assert dictionaries[2]["makespan_s"] is dictionaries[2]["gap"] is None
    frame = comparison.to_frame()
    assert list(frame.columns) == list(dictionaries[0])
    assert list(frame["method"]) == ["ilp", "heft", "x"]
    assert frame["makespan_s"].isna().tolist() == [False, False, True]


def test_a_plan_that_takes_no_time() -> None:
    comparison = compare(make_graph({"a": 0, "b": 0}, [("a", "b", 1)]), FAST, methods=["heft", "single"])
    assert [comparison.gap(row) for row in comparison.rows] == [0.0, 0.0]
    assert comparison.speedup(comparison.rows[0]) is None
    assert comparison.rows[0].status == "optimal"
