"""The default method as a whole: limits, interruptions, reports and reproducibility."""

import threading
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from threading import Event

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import limited, star
from solvers.helpers import broken_rules, make_graph, make_machine, make_problem, one_worker
from solvers.random_problems import random_fork_join
from solvers.synthetic import inception_like

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers import default_method, methods, phases
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.segment_search import SolvedSegments
from dlplacer.solvers.default_method import solve_ilp
from dlplacer.solvers.heuristics.common.memory_state import Fixed, Priority
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.construct import Rule
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.heuristics.randomized_restarts import improve, justified
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import surrogates
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.instance.schedule import Schedule, compact, in_sequence
from dlplacer.solvers.local_search.greedy_rules import HEURISTICS
from dlplacer.solvers.local_search.greedy_schedules import CompiledHeuristics
from dlplacer.solvers.methods import METHODS

_FOREVER_S = 1e6


def _hard() -> Problem:
    return make_problem(inception_like(training=True, blocks=5), make_machine(2, rate=12e9, latency_s=8e-6))


def _timetable(problem: Problem, method: str = "ilp", seconds: float = 60.0) -> Schedule:
    outcome = METHODS[method](problem, one_worker(seconds))
    assert outcome.schedule is not None
    return Schedule(outcome.schedule.device, outcome.schedule.start, outcome.schedule.makespan)


# Without a limit the search goes on for hours. How exactly it is kept depends on how busy the machine is.
def test_the_time_limit_ends_the_search_with_the_best_plan() -> None:
    problem = _hard()
    outcome = METHODS["ilp"](problem, one_worker(1.5))
    assert outcome.schedule is not None
    found = Schedule(outcome.schedule.device, outcome.schedule.start, outcome.schedule.makespan)
    assert not broken_rules(build_instance(problem), found)
    assert outcome.lower_bound <= found.makespan


def test_a_budget_that_is_over_still_gives_a_plan() -> None:
    outcome = METHODS["ilp"](_hard(), one_worker(0.0))
    assert outcome.schedule is not None


@pytest.mark.parametrize(
    ("kept", "seconds", "asked"), [(True, 5.0, True), (False, 5.0, False), (False, 30.0, True), (True, 0.0, False)]
)
def test_list_schedules_in_machine_code_come_first_where_it_is_kept_or_time_is_left(
    monkeypatch: pytest.MonkeyPatch, kept: bool, seconds: float, asked: bool
) -> None:
    problem = build_problem(FAMILIES["layered"](2100, 0, 1.0), star(2), Options())
    offered = Event()
    monkeypatch.setattr(default_method, "is_kept", lambda *names: kept)
    monkeypatch.setattr(CompiledHeuristics, "offer", lambda *given: offered.set())
    monkeypatch.setattr(phases, "search_phases", lambda *given, **named: None)
    monkeypatch.setattr(phases, "go_on", lambda *given: None)
    METHODS["ilp"](problem, one_worker(seconds))
    assert offered.is_set() == asked


@pytest.mark.parametrize("family", ["layered", "transformer_like"])
def test_where_memory_is_short_machine_code_makes_the_schedules_of_surrogates(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, rules = FAMILIES[family](300, 0, 1.0), methods.RULES
    ops = tuple(replace(op, weight_bytes=[0, 1, 4, 16][number % 4] * 2**20) for number, op in enumerate(drawn.ops))
    graph = replace(drawn, ops=ops)
    problem = build_problem(graph, limited(star(4), graph, 1.05), Options())
    in_python: set[str] = set()

    def watched(name: str, rule: Rule) -> Rule:
        def run(seen: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
            in_python.add(name)
            return rule(seen, priority, fixed)

        return run

    monkeypatch.setattr(methods, "RULES", {name: watched(name, rule) for name, rule in rules.items()})
    monkeypatch.setattr(default_method, "is_kept", lambda *names: True)
    monkeypatch.setattr(phases, "search_phases", lambda *given, **named: None)
    monkeypatch.setattr(phases, "go_on", lambda *given: None)
    outcome = METHODS["ilp"](problem, one_worker(60.0))
    assert outcome.schedule is not None
    assert "etf" in in_python
    assert not in_python & set(HEURISTICS)
    monkeypatch.setattr(methods, "RULES", rules)
    for name in HEURISTICS:
        own = methods.run_rule(problem, build_instance(problem), name, one_worker(60.0))
        assert own is None or outcome.schedule.makespan <= 1.02 * own.makespan, name


@pytest.mark.parametrize("after_s", [0.05, 0.7])
def test_stop_ends_the_search_with_the_best_plan(after_s: float) -> None:
    budget = one_worker(600.0)
    timer = threading.Timer(after_s, budget.stop.set)
    timer.start()
    outcome = METHODS["ilp"](_hard(), budget)
    timer.join()
    assert outcome.schedule is not None


def test_a_search_without_time_leaves_everything_open() -> None:
    instance = build_instance(_hard())
    found = list_schedule(instance, by_rank(instance, upward_ranks(instance)))
    assert found is not None
    model, variables = build_model(instance, lower_bounds(instance, 1.0), found.makespan, found)
    end = search(model, variables, instance, Incumbent(one_worker(1.0)), -0.5)
    assert end is SearchEnd.UNDECIDED


def test_reports_only_improve() -> None:
    seen: list[tuple[int | None, int]] = []
    budget = replace(one_worker(1.5), report=lambda makespan, bound: seen.append((makespan, bound)))
    outcome = METHODS["ilp"](_hard(), budget)
    makespans = [makespan for makespan, _ in seen if makespan is not None]
    assert makespans == sorted(makespans, reverse=True)
    assert [bound for _, bound in seen] == sorted(bound for _, bound in seen)
    assert outcome.schedule is not None
    assert seen[-1] == (outcome.schedule.makespan, outcome.lower_bound)


def test_the_search_ends_at_the_gap_that_is_asked_for() -> None:
    outcome = METHODS["ilp"](_hard(), one_worker(600.0, gap=0.5))
    assert outcome.schedule is not None
    assert outcome.schedule.makespan - outcome.lower_bound <= 0.5 * outcome.schedule.makespan


def test_one_worker_gives_the_same_plan_again() -> None:
    for seed in range(5):
        problem = make_problem(*random_fork_join(seed, 4, plain=False))
        if build_instance(problem).memory_binds:
            continue
        assert _timetable(problem) == _timetable(problem)


def test_no_plan_is_worse_than_the_heuristics() -> None:
    problem = _hard()
    best = _timetable(problem, seconds=0.5).makespan
    assert best <= min(_timetable(problem, method).makespan for method in ("list", "heft", "single"))


def test_a_bound_above_a_schedule_is_an_internal_error() -> None:
    incumbent = Incumbent(one_worker())
    incumbent.offer(Schedule((0,), (0,), 5))
    with pytest.raises(InternalError, match="lower bound of 6 ticks is above the makespan of 5 ticks"):
        incumbent.raise_bound(6)


def test_improvement_never_worsens_and_is_deterministic() -> None:
    instance = build_instance(_hard())
    first = list_schedule(instance, by_rank(instance, upward_ranks(instance)))
    assert first is not None
    found = []
    for _ in range(2):
        incumbent = Incumbent(Budget(time.monotonic() + 60, seed=3))
        incumbent.offer(first)
        improve(instance, incumbent, 60.0, 30)
        assert incumbent.best is not None
        assert not broken_rules(instance, incumbent.best)
        found.append(incumbent.best)
    assert found[0] == found[1]
    assert found[0].makespan < first.makespan


def test_pushing_late_and_early_again_closes_gaps() -> None:
    graph = make_graph({"a": 4, "b": 1, "c": 4, "d": 3}, [("b", "c", 0)])
    instance = build_instance(make_problem(graph, make_machine(2)))
    # d0: a 0-4, c 4-8; d1: d 0-3, b 3-4. Late by ends: c ends at 8, a before it; b ends at 4, d at 8.
    # Early again by those starts: b first on d1, then c is free to follow a or b.
    given = Schedule((0, 1, 0, 1), (0, 3, 4, 0), 8)
    better = justified(instance, given)
    assert not broken_rules(instance, better)
    assert better.makespan <= given.makespan
    assert better.device == given.device


def test_compacting_moves_a_sink_out_of_the_op_around_it() -> None:
    graph = make_graph({"a": 5, "b": 2, "out": 0}, [("b", "out", 0)])
    instance = build_instance(make_problem(graph, make_machine(2)))
    # out at 2 lies inside a (0-5) on d0: it moves to 5.
    assert compact(instance, (0, 1, 0), (0, 0, 2)) == Schedule((0, 1, 0), (0, 0, 5), 5)


def test_only_a_proof_ends_the_search_early(monkeypatch: pytest.MonkeyPatch) -> None:
    # Windows that give up at once: what is left is to go on with other draws until the time is up.
    monkeypatch.setattr(phases, "PARAMS", replace(phases.PARAMS, windows_patience=0))
    problem = build_problem(FAMILIES["stencil"](50, 1, 1.0), star(3), Options())
    began = time.monotonic()
    outcome = METHODS["ilp"](problem, one_worker(3.0))
    assert outcome.schedule is not None
    assert outcome.schedule.makespan == outcome.lower_bound or time.monotonic() - began >= 2.9


@pytest.mark.parametrize("is_part", [False, True])
def test_a_part_of_the_machine_gets_no_time_for_bounds_alone(is_part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _hard()
    instance = build_instance(problem)
    incumbent = Incumbent(one_worker(_FOREVER_S))
    incumbent.offer(in_sequence(instance, [0] * instance.op_count, instance.order))
    asked: list[str] = []

    class Enough(Exception):
        """Ends the search at the first phase after segments."""

    def reconcile(*_: object) -> None:
        asked.append("master problem")

    def stop(*_: object) -> None:
        raise Enough

    monkeypatch.setattr(phases, "_solve_segments", lambda _i, _s, bounds, *_: SolvedSegments(bounds))
    monkeypatch.setattr(phases, "_reconcile_segments", reconcile)
    monkeypatch.setattr(phases, "swap_critical", stop)
    with pytest.raises(Enough):
        phases.search_phases(problem, instance, incumbent, is_part=is_part)
    assert asked == ([] if is_part else ["master problem"])


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("number", range(6))
def test_every_start_is_asked_on_every_surrogate_until_there_is_a_plan(number: int, position: int) -> None:
    ops = tuple(Op(name, "t", 1.0, weight_bytes=4, output_bytes=8) for name in "abcdef")
    graph = OpGraph(ops, tuple(Edge(a, b, 8) for a, b in pairwise("abcdef")))
    problem = build_problem(graph, make_machine(2, memory=40), Options())
    seen = [build_instance(problem), *surrogates(problem)]
    wanted = in_sequence(seen[0], [0, 0, 0, 1, 1, 1], seen[0].order)
    asked: list[int] = []

    def start(which: int, problem: Problem, surrogate: Instance) -> Schedule | None:
        asked.append(which)
        return wanted if which == position and surrogate.footprint == seen[number].footprint else None

    def begin(instance: Instance, incumbent: Incumbent) -> None:
        # No other schedule counts, so those that a placement by itself leads to do not end the search.
        incumbent.admits = lambda schedule: schedule is wanted

    starts = [StartMethod(1.0, partial(start, which)) for which in range(4)]
    outcome = solve_ilp(problem, one_worker(_FOREVER_S, gap=1.0), starts, begin)
    assert len(seen) == 6
    assert outcome.schedule is not None
    assert outcome.schedule.start == wanted.start
    # Each is asked once before any is asked again; what comes after the gap that is asked for is not asked.
    assert set(asked) == set(range(4)) if number else {0, 1, position} <= set(asked)
