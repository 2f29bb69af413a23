"""Workloads of msr-fiddle/dnn-partitioning: two small ones by hand, and broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from dlplacer.cli.main import main
from dlplacer.core.errors import FileFormatError
from dlplacer.core.options import Options
from dlplacer.machines.importers.any_format import import_topology
from dlplacer.machines.importers.dnn_partitioning import import_graph
from dlplacer.planning.place import place

PUBLISHED = Options(objective="max-load", contention="none", memory="sum")


def _node(number: int, time_ms: float, **more: Any) -> dict[str, Any]:
    named = {"id": number, "name": f"n{number}", "supportedOnFpga": 1, "size": 10.0}
    return {**named, "fpgaLatency": time_ms, "cpuLatency": 10 * time_ms, "isBackwardNode": 0, **more}


def _written(folder: Path, nodes: list[dict[str, Any]], edges: list[tuple[int, int, float]], devices: int = 2) -> Path:
    # A cost of one millisecond is 1000 bytes.
    listed = [{"sourceId": a, "destId": b, "cost": cost, "size": 1000 * cost} for a, b, cost in edges]
    machine = {"maxSizePerFPGA": 100.0, "maxFPGAs": devices, "maxCPUs": 0}
    path = folder / "workload.json"
    path.write_text(json.dumps({**machine, "nodes": nodes, "edges": listed}))
    return path


def test_both_ends_pay_for_a_tensor_once_however_many_read_it(tmp_path: Path) -> None:
    # A device with nodes 0 and 1 computes for 8 ms and sends for 1 ms; the other one computes for 6 ms and pays 1 ms.
    nodes = [_node(0, 4.0), _node(1, 4.0), _node(2, 3.0), _node(3, 3.0)]
    path = _written(tmp_path, nodes, [(0, 1, 5.0), (1, 2, 1.0), (1, 3, 1.0)])
    plan = place(import_graph(path), import_topology(path), PUBLISHED, time_limit_s=10, workers=1).plan
    assert plan.period_s == pytest.approx(9e-3)
    assert plan.status == "optimal"


def test_a_colour_class_stays_on_one_device(tmp_path: Path) -> None:
    # Apart from their colours the classes could be split into 5 + 5 ms.
    nodes = [
        _node(0, 3.0, colorClass=7),
        _node(1, 2.0),
        _node(2, 2.0, isBackwardNode=1),
        _node(3, 3.0, colorClass=7, isBackwardNode=1),
    ]
    path = _written(tmp_path, nodes, [(0, 1, 0.0), (2, 3, 0.0)])
    graph = import_graph(path)
    plan = place(graph, import_topology(path), PUBLISHED, time_limit_s=10, workers=1).plan
    assert plan.placement["n0"] == plan.placement["n3"]
    assert plan.period_s == pytest.approx(6e-3)
    assert [op.phase for op in graph.ops] == ["forward", "forward", "backward", "backward"]


def test_host_cores_pay_for_no_transfer(tmp_path: Path) -> None:
    nodes = [_node(0, 1.0, cpuLatency=1.0), _node(1, 1.0)]
    path = _written(tmp_path, nodes, [(0, 1, 4.0)], devices=1)
    path.write_text(path.read_text().replace('"maxCPUs": 0', '"maxCPUs": 1'))
    machine = import_topology(path)
    assert [device.asynchronous for device in machine.devices] == [True, False]
    # Apart, the accelerator would compute for 1 ms and receive for 4 ms.
    plan = place(import_graph(path), machine, PUBLISHED, time_limit_s=10, workers=1).plan
    assert plan.period_s == pytest.approx(2e-3)


def test_the_command_writes_a_graph(tmp_path: Path) -> None:
    path = _written(tmp_path, [_node(0, 1.0), _node(1, 2.0)], [(0, 1, 0.5)])
    assert main(["graph", "import", str(path), "-o", str(tmp_path / "graph.json")]) == 0
    assert main(["topology", "import", str(path), "-o", str(tmp_path / "machine.json")]) == 0
    solve = ["solve", str(tmp_path / "graph.json"), str(tmp_path / "machine.json"), "--objective", "max-load"]
    assert main([*solve, "--time-limit", "5s", "-o", str(tmp_path / "plan.json")]) == 0
    assert main(["check", str(tmp_path / "plan.json")]) == 0
    assert main(["explain", str(tmp_path / "plan.json")]) == 2


def test_mistakes_are_listed_with_their_places(tmp_path: Path) -> None:
    path = _written(tmp_path, [_node(0, 1.0), _node(0, -1.0)], [(0, 5, 1.0)])
    with pytest.raises(FileFormatError) as caught:
        import_graph(path)
    assert any("nodes[1].fpgaLatency" in mistake for mistake in caught.value.mistakes)
