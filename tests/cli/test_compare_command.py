"""compare on the command line: table, JSON, picture, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from dlplacer.cli.main import main
from dlplacer.solvers.methods import METHODS

GRAPH: dict[str, Any] = {
    "format": "dlplacer.graph/1",
    "name": "diamond",
    "nodes": [
        {"id": name, "kind": "op", "time_s": time_s, "output_bytes": 100}
        for name, time_s in {"a": 1.0, "b": 2.0, "c": 2.0, "d": 1.0}.items()
    ],
    "edges": [{"source": pair[0], "target": pair[1], "bytes": 10} for pair in ("ab", "ac", "bd", "cd")],
}
TOPOLOGY: dict[str, Any] = {
    "format": "dlplacer.topology/1",
    "nodes": [{"id": name, "kind": "device", "memory_bytes": 300} for name in "xy"],
    "edges": [{"source": "x", "target": "y", "bytes_per_s": 100.0}],
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    graph, topology = tmp_path / "graph.json", tmp_path / "topology.json"
    graph.write_text(json.dumps(GRAPH))
    topology.write_text(json.dumps(TOPOLOGY))
    return [str(graph), str(topology)]


def test_json_has_every_method(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files, "--paper", "--json", "--time-limit", "120", "--workers", "1"]) == 0
    captured = capsys.readouterr()
    rows = {row["method"]: row for row in json.loads(captured.out)["methods"]}
    assert set(rows) == set(METHODS)
    assert all({"method", "makespan_s", "lower_bound_s", "solve_s", "status"} <= row.keys() for row in rows.values())
    # a, b on x, c, d on y: c 1.1-3.1, d when b's tensor is there at 3.1: 4.1. No device has room for all four.
    assert rows["ilp"]["makespan_s"] == pytest.approx(4.1)
    assert rows["ilp"]["status"] == "optimal"
    assert rows["single"]["status"] == "infeasible"
    assert rows["single"]["makespan_s"] is None
    assert all(row["makespan_s"] is None or row["makespan_s"] >= row["lower_bound_s"] for row in rows.values())
    assert captured.err == ""
