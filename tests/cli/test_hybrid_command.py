"""hybrid on the command line: table, JSON, picture, sources of step times, mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest

from dlplacer.cli.main import main

NODES = [
    {"id": "w", "kind": "parameter", "time_s": 0, "gradient_bytes": 4_000_000, "weight_bytes": 4_000_000},
    {"id": "split", "kind": "op", "time_s": 0},
    *({"id": name, "kind": "op", "time_s": 0.010, "phase": "backward"} for name in ("left", "right")),
    {"id": "w.grad", "kind": "gradient", "time_s": 0, "phase": "backward", "colocate": "w"},
]
EDGES = [{"source": pair[0], "target": pair[1], "bytes": 1000} for pair in (("w", "left"), ("left", "w.grad"))]
EDGES += [{"source": "split", "target": name, "bytes": 1000} for name in ("left", "right")]
EPOCHS = {"32": 4, "64": 7}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    graph, topology, epochs = (tmp_path / f"{name}.json" for name in ("graph", "topology", "epochs"))
    graph.write_text(json.dumps({"format": "dlplacer.graph/1", "name": "halves", "nodes": NODES, "edges": EDGES}))
    devices = [{"id": name, "kind": "device"} for name in "abcd"]
    links = [{"source": name, "target": "s", "bytes_per_s": 1e9} for name in "abcd"]
    nodes = [*devices, {"id": "s", "kind": "router"}]
    topology.write_text(json.dumps({"format": "dlplacer.topology/1", "name": "box", "nodes": nodes, "edges": links}))
    epochs.write_text(json.dumps({"format": "dlplacer.epochs/1", "epochs": EPOCHS, "mini_batch": 10}))
    return [str(graph), str(topology), "--paper", "--epochs", str(epochs)]


def planned(files: list[str], capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert main(["hybrid", *files, *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_speedups_come_from_the_solver_on_the_machine(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(files, capsys, "--devices", "4", "--codecs", "none", "--time-limit", "120")
    hybrid = found["budgets"][1]["hybrid"]
    assert hybrid["model_parallel_method"] == "placement"
    # two halves of 10 ms side by side; 1 kB travels in 1 us over a switch in two hops of eq. 11
    assert hybrid["model_parallel_speedup"] == pytest.approx(2.0, rel=1e-3)
    assert hybrid["exposed_s"] == 0.0
    alone = found["budgets"][1]["data_parallel"]
    # gradients are made by the first op of the backward pass, 10 ms before its end; they need 4 ms
    assert alone["step_s"] == pytest.approx(0.020, rel=1e-6)
    assert (alone["algorithm"], alone["codec"], alone["groups"]) == ("ring", "none", 1)


def test_a_model_that_fits_on_no_device_has_no_speedup(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, topology = (json.loads(Path(name).read_text()) for name in files[:2])
    graph["nodes"][2]["weight_bytes"] = 4_000_000
    for node in topology["nodes"][:4]:
        node["memory_bytes"] = 10_000_000
    tight = [str(tmp_path / "tight_graph.json"), str(tmp_path / "tight.json")]
    Path(tight[0]).write_text(json.dumps(graph))
    Path(tight[1]).write_text(json.dumps(topology))
    found = planned([*tight, "--paper"], capsys, "--devices", "2")
    assert found["budgets"][0]["best"] is None
    assert found["budgets"][1]["best"]["speedup"] is None
    pages = ["--html", str(tmp_path / "page.html"), "--picture", str(tmp_path / "chart.svg")]
    assert main(["hybrid", *tight, "--paper", "--devices", "2", *pages]) == 0
    assert "fits on no single device" in (tmp_path / "page.html").read_text()
