"""Measured times that serve other graphs: what is known, what is not, and what must not be mixed."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.files.load import load_graph
from dlplacer.machines.costs.calibration import (
    Calibration,
    CopyLine,
    Entry,
    calibration_of,
    merged,
    read_calibration,
    signature,
    with_calibrated_links,
    with_calibrated_times,
    write_calibration,
)

VERSIONS = {"torch": "2.13.0", "hardware": "a processor"}


def measured(**more: object) -> Calibration:
    return Calibration.model_validate(
        {"device_type": "core", "versions": VERSIONS, "overhead_s": 1.0, "ops": {}} | more
    )


def relu(name: str, source: str, size: int) -> Op:
    return Op(
        name,
        "aten.relu",
        {"core": 5.0},
        bytes_accessed=8 * size,
        outputs=(TensorSpec((size,), "float32", 4 * size),),
        attrs={"target": "aten.relu.default", "args": [{"tensor": source}], "kwargs": {}},
    )


def chain(prefix: str, *sizes: int) -> OpGraph:
    ops = [Op(f"{prefix}in", "input", 0.0, outputs=(TensorSpec((sizes[0],), "float32", 4 * sizes[0]),))]
    edges = []
    for number, size in enumerate(sizes):
        ops.append(relu(f"{prefix}{number}", ops[-1].id, size))
        edges.append(Edge(ops[-2].id, ops[-1].id, 4 * size))
    return OpGraph(tuple(ops), tuple(edges))


def test_an_op_is_known_by_what_it_is_and_not_by_its_name() -> None:
    first, other = chain("a", 8, 8, 9), chain("b", 8, 8, 9)
    assert signature(first, first.op("a0")) == signature(other, other.op("b0"))
    assert signature(first, first.op("a1")) != signature(first, first.op("a2"))
    changed = replace(first.op("a0"), attrs={**first.op("a0").attrs, "kwargs": {"inplace": True}})
    assert signature(first, changed) != signature(first, first.op("a0"))


def test_times_go_to_another_graph() -> None:
    graph = chain("a", 8, 8, 8, 10**6)
    times = {"ain": 0.0, "a0": 1.0, "a1": 2.0, "a2": 4.0, "a3": 30.0}
    calibration = calibration_of(graph, times, "core", VERSIONS)
    assert calibration.overhead_s == 2.0
    timed, known = with_calibrated_times(chain("b", 8, 10**6, 77), calibration)
    assert [timed.op(name).time_on("core") for name in ("b0", "b1", "b2")] == [2.0, 30.0, 5.0]
    assert known == 2


def test_every_op_of_inception_is_known_again(tmp_path: Path) -> None:
    graph = load_graph("inception_v3-train")
    times = {op.id: op.time_on("V100") or 0.0 for op in graph.ops}
    write_calibration(tmp_path / "v100.json", calibration_of(graph, times, "V100", VERSIONS))
    calibration = read_calibration(tmp_path / "v100.json")
    assert len(calibration.ops) < len(graph.ops)
    timed, known = with_calibrated_times(graph, calibration)
    assert known == sum(bool(op.attrs) for op in graph.ops)
    assert sum(op.time_on("V100") or 0 for op in timed.ops) == pytest.approx(sum(times.values()), rel=1e-3)


def test_links_between_devices_of_the_type_take_the_measured_line() -> None:
    box = Topology(
        (Device("a", "core"), Device("b", "core"), Device("c")), (), (Link("a", "b", 1.0), Link("b", "c", 2.0))
    )
    calibration = measured(copy_line=CopyLine(3e-6, 5e9))
    first, second = with_calibrated_links(box, calibration).links
    assert (first.latency_s, first.bytes_per_s) == (3e-6, 5e9)
    assert second == box.links[1]
    assert with_calibrated_links(box, measured()) == box


def test_merging_keeps_both_and_refuses_other_machines() -> None:
    old = measured(ops={"a": Entry(1.0), "b": Entry(2.0)}, copy_line=CopyLine(1e-6, 1e9))
    both = merged(old, measured(overhead_s=2.0, ops={"b": Entry(3.0, 4)}))
    assert both.ops == {"a": Entry(1.0), "b": Entry(3.0, 4)}
    assert (both.overhead_s, both.copy_line) == (2.0, CopyLine(1e-6, 1e9))
    with pytest.raises(InputError, match=r"2.13.0.*; here it is .*2.12.0"):
        merged(old, measured(versions={**VERSIONS, "torch": "2.12.0"}))
    with pytest.raises(InputError, match="'core' cannot take times of 'V100'"):
        merged(old, measured(device_type="V100"))
