"""Heuristics under memory over time count what the backward pass needs with the op that writes it."""

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place

_LAYERS = 20


def _training_step() -> OpGraph:
    """Layers of 10 bytes of weights that keep 3 bytes each for their backward ops, which take twice as long."""
    ops, edges = [], []
    times = {"fast": 1.0, "slow": 5.0}
    for i in range(_LAYERS):
        ops.append(Op(f"f{i}", "f", times, weight_bytes=10, output_bytes=3, colocate=f"{i}", phase="forward"))
        edges += [Edge(f"f{i}", f"f{i + 1}", 3, tensor=f"x{i}")] if i + 1 < _LAYERS else []
        edges += [Edge(f"f{i}", f"b{i}", 3, tensor=f"x{i}")]
    for i in range(_LAYERS - 1, -1, -1):
        twice = {name: 2 * seconds for name, seconds in times.items()}
        ops.append(Op(f"b{i}", "b", twice, colocate=f"{i}", phase="backward", output_bytes=3))
        edges += [Edge(f"b{i}", f"b{i - 1}", 3, tensor=f"d{i}")] if i else []
    return OpGraph(tuple(ops), tuple(edges))


@pytest.mark.parametrize("method", ["contiguous", "ilp"])
def test_the_fast_device_is_filled_with_what_is_alive_there(method: str) -> None:
    # 12 layers with what they keep take 156 bytes of the fast device's 165, and gradients under way 9 more: 13 are too
    # many. 12 · 3 s there and 8 · 15 s on the slow device, and 4 s (3 bytes at 1 byte/s, 1 s) forward and back.
    devices = Device("a", "fast", memory_bytes=165), Device("b", "slow", memory_bytes=1000)
    topology = Topology(devices, (), (Link("a", "b", 1, 1),))
    plan = place(_training_step(), topology, Options(), method=method, time_limit_s=30, gap=0.01, workers=1).plan
    assert sum(entry.device == "a" for entry in plan.ops) == 24
    assert plan.makespan_s == pytest.approx(12 * 3 + 8 * 15 + 2 * 4)
    if method == "ilp":
        assert plan.gap < 0.01
