"""A contradiction leaves a file from which the problem can be solved again."""

import json
from pathlib import Path

import pytest
from solvers.helpers import make_graph, make_machine

from dlplacer.core.errors import InternalError
from dlplacer.core.options import Options
from dlplacer.files.formats import read_plan
from dlplacer.files.load import load_graph, load_topology
from dlplacer.planning.assemble import plan_of, problem_kept
from dlplacer.planning.place import place
from dlplacer.problem.problem import build_problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.instance.schedule import Outcome

GRAPH, MACHINE = make_graph({"a": 2, "b": 3}, [("a", "b", 1)]), make_machine(2)


def test_a_plan_below_a_bound_keeps_problem_bound_and_plan_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = build_problem(GRAPH, MACHINE, Options.paper())
    ops, transfers = replay(problem, [0, 0], [0, 1])
    # A bound of a tick more than the step of 5 s.
    outcome = Outcome(None, int(5 / problem.tick_s) + 1)
    with pytest.raises(InternalError) as raised, problem_kept(problem):
        plan_of(problem, ops, transfers, outcome, "ilp", 0.0, {})
    (kept,) = tmp_path.glob("*.json")
    assert str(kept) in str(raised.value)
    value = json.loads(kept.read_text())
    for name in ("graph", "topology"):
        (tmp_path / f"{name}.json").write_text(json.dumps(value[name]))
    graph, topology = load_graph(str(tmp_path / "graph.json")), load_topology(str(tmp_path / "topology.json"))
    assert place(graph, topology, Options(**value["options"])).plan.makespan_s == 5
    assert value["evidence"]["lower_bound_s"] > read_plan(value["evidence"]["plan"], "plan").makespan_s == 5
