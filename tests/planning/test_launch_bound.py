"""Issue costs that a machine does not name: planned for if asked, and told where they change the answer."""

from dataclasses import replace

import pytest

from dlplacer.core.constraints import Constraints
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Topology
from dlplacer.files.load import load_topology
from dlplacer.machines.costs.roofline import with_issue
from dlplacer.planning.one_device import launch_note, one_device_note, one_device_s
from dlplacer.planning.place import place

TWO_GPUS = load_topology("dgx1-v100-2gpu")


def chains(time_s: float, length: int = 40) -> OpGraph:
    """Two chains that never meet."""
    names = [[f"{side}{n}" for n in range(length)] for side in "ab"]
    ops = tuple(Op(name, "op", time_s) for each in names for name in each)
    edges = tuple(Edge(each[n], each[n + 1], 8) for each in names for n in range(length - 1))
    return OpGraph(ops, edges)


# 80 ops of 7 us take 560 us on one GPU and 280 on two; one process issues them in 560 us, whatever runs them.
def test_launches_decide_where_ops_are_as_short_as_they_are() -> None:
    found = place(chains(7e-6), TWO_GPUS, time_limit_s=3.0)
    assert found.speedup == pytest.approx(2.0)
    told = launch_note(found)
    assert told is not None
    assert "one device is best" in told
    eager = place(chains(7e-6), TWO_GPUS, time_limit_s=3.0, issue="eager")
    assert eager.plan.makespan_s == pytest.approx(567e-6)
    assert eager.single_device_s == pytest.approx(567e-6)
    assert launch_note(eager) is None


def test_launches_change_nothing_for_long_ops_nor_where_the_machine_names_them() -> None:
    assert launch_note(place(chains(1e-3), TWO_GPUS, time_limit_s=3.0)) is None
    named = replace(TWO_GPUS, devices=tuple(replace(one, dispatch_s=0.0) for one in TWO_GPUS.devices))
    assert launch_note(place(chains(7e-6), named, time_limit_s=3.0)) is None
    assert with_issue(named, "eager") == named


# A second device saves 1 of 41 ops.
def test_a_plan_within_the_noise_of_one_device_is_said_to_be() -> None:
    long, beside = chains(1e-3), ("b0",)
    ops = tuple(op for op in long.ops if op.id.startswith("a") or op.id in beside)
    edges = tuple(edge for edge in long.edges if edge.source.startswith("a"))
    plan = place(OpGraph(ops, edges), TWO_GPUS, time_limit_s=3.0).plan
    assert len(set(plan.placement.values())) == 2
    assert one_device_note(plan) is not None
    for constraints, is_told in ((Constraints({}, (("a0", "a1"),)), True), (Constraints({"a0": "gpu0"}), False)):
        held = replace(plan, graph=replace(plan.graph, constraints=constraints))
        assert (one_device_note(held) is not None) is is_told
    assert one_device_note(place(long, TWO_GPUS, time_limit_s=3.0).plan) is None


def test_a_gpu_of_an_unknown_type_launches_as_others_do() -> None:
    known, unknown = with_issue(Topology((Device("a", "V100"), Device("b", "MyV100"))), "eager").devices
    assert unknown.dispatch_s == known.dispatch_s == 7e-6


def test_a_device_without_room_for_all_ops_is_none_for_the_step() -> None:
    graph = OpGraph((Op("a", "mm", 1.0, weight_bytes=6), Op("b", "mm", 1.0, weight_bytes=6)))
    assert one_device_s(graph, Topology((Device("d", memory_bytes=12),))) == 2.0
    assert one_device_s(graph, Topology((Device("d", memory_bytes=11),))) is None
