"""A problem in files: a diamond of ops, and two devices."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Graph and machine: a (1 s) feeds b and c (2 s each), which feed d (1 s); 10 bytes cross in 0.1 s."""
    graph, topology = tmp_path / "graph.json", tmp_path / "topology.json"
    times = {"a": 1.0, "b": 2.0, "c": 2.0, "d": 1.0}
    nodes = [{"id": name, "kind": "op", "time_s": time_s, "output_bytes": 100} for name, time_s in times.items()]
    edges = [{"source": pair[0], "target": pair[1], "bytes": 10} for pair in ("ab", "ac", "bd", "cd")]
    graph.write_text(json.dumps({"format": "dlplacer.graph/1", "name": "diamond", "nodes": nodes, "edges": edges}))
    devices = [{"id": name, "kind": "device", "memory_bytes": 400} for name in "xy"]
    links = [{"source": "x", "target": "y", "bytes_per_s": 100.0}]
    topology.write_text(json.dumps({"format": "dlplacer.topology/1", "nodes": devices, "edges": links}))
    return graph, topology
