"""The example of the hybrid planner runs as it stands, on a small graph."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

if not (ROOT / "examples").is_dir():
    pytest.skip("the examples are in the checkout only", allow_module_level=True)


def test_it_measures_places_and_plans(tmp_path: Path) -> None:
    names = ("left", "right")
    nodes = [{"id": "in", "kind": "input", "time_s": 0}]
    nodes += [{"id": name, "kind": "op", "time_s": 0.01, "gradient_bytes": 4_000_000} for name in names]
    edges = [{"source": "in", "target": name, "bytes": 1000} for name in names]
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps({"format": "dlplacer.graph/1", "name": "halves", "nodes": nodes, "edges": edges}))
    command = [sys.executable, str(ROOT / "examples" / "02_hybrid_planner.py"), "--graph", str(graph)]
    options = ["--devices", "8", "--time-limit", "120", "--output", str(tmp_path / "demo")]
    first = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert "16 workers: " in first.stdout
    assert "hybrid wins from 2 devices on" in first.stdout
    epochs = json.loads((tmp_path / "demo" / "epochs.json").read_text())["epochs"]
    assert epochs["16"] > epochs["1"]
    assert (tmp_path / "demo" / "hybrid.png").stat().st_size > 1000
    assert len((tmp_path / "demo" / "hybrid.csv").read_text().splitlines()) == 9
