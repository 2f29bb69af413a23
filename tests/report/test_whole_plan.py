"""Plans from files whose parts do not fit together: told in a line, whatever is asked to be shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlplacer.cli.main import main
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.files import write_plan
from dlplacer.planning.place import place

GRAPH = OpGraph(
    (Op("a", "op", 1.0), Op("b", "op", 2.0), Op("c", "op", 2.0)), (Edge("a", "b", 100), Edge("a", "c", 100))
)
MACHINE = Topology((Device("x"), Device("y")), (), (Link("x", "y", 1e4),))


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan = place(GRAPH, MACHINE, method="heft").plan
    assert plan.transfers
    write_plan(path, plan)
    return path.read_text()


def first(part: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plan: plan[part][0].update(fields)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda plan: plan.update(ops=[], transfers=[]), "op 'a' is not scheduled"),
        (lambda plan: plan["ops"].pop(), "is not scheduled"),
        (first("ops", op="z"), "op 'z' is not in its graph"),
        (first("ops", device="z"), "is on 'z', which is no device of its topology"),
        (first("transfers", source="z"), "comes from 'z', which is not in its graph"),
        (first("transfers", target="z"), "goes to 'z', which is no device of its topology"),
        (
            lambda plan: first("transfers")(plan) or plan["transfers"][0]["segments"][0].update(route=[["x", "z"]]),
            "link",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(
    content: str,
    broken: Callable[[dict[str, Any]], None],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan, path = json.loads(content), tmp_path / "plan.json"
    broken(plan)
    path.write_text(json.dumps(plan))
    for command in (["explain", "--budget", "0"], ["show", "--trace", str(tmp_path / "t.json")], ["show"]):
        assert main([command[0], str(path), *command[1:]]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "dlplacer check" in error
    assert main(["check", str(path)]) == 5
