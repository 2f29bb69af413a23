"""Every method ends when its time is up or somebody asks to stop, with what it has by then."""

import signal
from dataclasses import dataclass, field

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import linked
from solvers.helpers import make_graph, make_machine

import dlplacer as dp
from dlplacer.planning.place import place
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.heuristics.min_cut import available
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.methods import RULES, run_rule


@dataclass(frozen=True)
class AskedBudget(Budget):
    """Has time left for so many questions."""

    most: int = 10**9
    asked: list[int] = field(default_factory=lambda: [0])

    @property
    def left_s(self) -> float:
        """A second, or nothing."""
        self.asked[0] += 1
        return 1.0 if self.asked[0] <= self.most else 0.0


def _problem(memory: int | None = None) -> Problem:
    graph = FAMILIES["layered"](120, 3, 1.0)
    machine = linked(4) if memory is None else make_machine(4, memory, 25e9)
    return build_problem(graph, machine, dp.Options())


RULE_NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(name == "min-cut" and not available(), reason="needs pymetis"))
    for name in RULES
]


@pytest.mark.parametrize("method", RULE_NAMES)
def test_a_heuristic_keeps_the_schedule_that_there_was_time_for(method: str) -> None:
    problem = _problem()
    instance = build_instance(problem)
    free = AskedBudget(0.0)
    best = run_rule(problem, instance, method, free)
    assert best is not None
    # The third rank of three is cut off.
    found = run_rule(problem, instance, method, AskedBudget(0.0, most=free.asked[0] - 20))
    assert found is not None
    assert found.makespan >= best.makespan
    # A schedule that is there leaves what is to be spared.
    spared = AskedBudget(0.0)
    early = run_rule(problem, instance, method, spared, spared_s=2.0)
    assert early is not None
    assert spared.asked[0] < free.asked[0] // 2 + 20


def test_an_interrupt_while_a_plan_is_checked_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module = importlib.import_module("dlplacer.planning.place")
    assemble = module.assemble

    def interrupted(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return assemble(*arguments)

    monkeypatch.setattr(module, "assemble", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = place(make_graph({"a": 1.0, "b": 1.0}), make_machine(2), method="list")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.plan.makespan_s == 1.0
