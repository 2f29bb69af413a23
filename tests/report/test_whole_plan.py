"""Plans that were edited: refused, whatever is asked to be shown, with the first rule that they break."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dlplacer as dp
from dlplacer.cli.main import main
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
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
    plan.save(path)
    return path.read_text()


@pytest.mark.parametrize(
    "edit",
    [
        lambda plan: plan["ops"].pop(),
        lambda plan: plan["transfers"][0]["segments"][0].update(route=[["x", "z"]]),
        lambda plan: plan.update(makespan_s=1e-4, transfers=[]),
    ],
)
def test_an_edited_plan_is_not_shown(
    content: str, edit: Callable[[dict[str, Any]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, path, page = json.loads(content), tmp_path / "plan.json", tmp_path / "page.html"
    edit(plan)
    path.write_text(json.dumps(plan))
    assert main(["check", str(path)]) == 5
    found = capsys.readouterr().err.splitlines()[1:]
    sound = tmp_path / "sound.json"
    sound.write_text(content)
    for command in (
        ["explain", path, "--budget", "0"],
        ["show", path],
        ["show", sound, "--html", page, "--against", path],
    ):
        assert main(list(map(str, command))) == 5
        told = capsys.readouterr()
        assert found[0].strip() in told.err
        assert f"violations: {len(found)}, all listed by `dlplacer check {path}`" in told.err
    for draw in (dp.show, dp.explain, dp.plot.gantt):
        with pytest.raises(dp.CheckError):
            draw(path)
    assert not page.exists()


def test_a_plan_that_a_caller_has_changed_has_a_place_for_every_op() -> None:
    plan = place(GRAPH, MACHINE, method="heft").plan
    with pytest.raises(dp.CheckError, match="is scheduled 0 times"):
        dp.explain(replace(plan, ops=plan.ops[:-1]))
