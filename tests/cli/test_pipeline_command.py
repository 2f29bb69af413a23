"""pipeline on the command line: what it prints, the files that it writes, and what `solve` says about pipelines."""

import json
from pathlib import Path
from typing import Any

import pytest
from planning.pipeline.graphs import chain, devices

from dlplacer.cli.main import main
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.files.load import load_plan

CHAIN = chain([1, 2, 3, 4, 2], bytes_=0)


def files(folder: Path, graph: OpGraph = CHAIN, topology: Topology | None = None) -> list[str]:
    graph.save(folder / "graph.json")
    (topology or devices(["x", "x"])).save(folder / "topology.json")
    return [str(folder / "graph.json"), str(folder / "topology.json")]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# Forward and backward of the halves {1 2 3} and {4 2}: 9 s for each of 2 micro-batches; (2 + 1) · 9 = 27 against 36.
def test_json_tells_stages_bubble_and_speedup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("--stages", "2", "--micro-batches", "2", "--schedule", "1f1b", "--time-limit", "120")
    found = printed(capsys, "pipeline", *files(tmp_path), *wanted)
    assert found["step_s"] == pytest.approx(27.0)
    assert found["bubble"] == pytest.approx(1 / 3)
    assert found["speedup"] == pytest.approx(36 / 27)
    assert [stage["op_count"] for stage in found["stages"]] == [6, 4]
    assert found["order"] == [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    assert found["op_placement"]["makespan_s"] == pytest.approx(36.0)
    assert found["exact"]


def test_plan_is_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.json")
    wanted = ("--batch-size", "8", "--micro-batches", "4", "--schedule", "zero-bubble", "--time-limit", "0")
    found = printed(capsys, "pipeline", "dlplacer.models:mlp", "cpu-2core", *wanted, "-o", plan)
    assert found["op_placement"] is None
    assert main(["check", plan]) == 0
    made = load_plan(plan)
    assert made.method == "pipeline/zero-bubble"
    assert made.graph.capture is not None
    assert made.graph.capture["rewrites"][-1] == "micro-batches:4"
    assert {op.colocate for op in made.graph.ops if op.kind == "gradient"} <= made.placement.keys()
    assert main(["explain", plan, "--budget", "0"]) == 0
