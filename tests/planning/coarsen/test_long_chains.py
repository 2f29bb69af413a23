"""Graphs of long chains become coarse in time that grows with their length, not with its square."""

import time
from collections.abc import Callable

import dlplacer as dp
from dlplacer.planning.coarsen.fuse import chains
from dlplacer.planning.coarsen.granularity import coarsen


def _chain(length: int) -> dp.OpGraph:
    ops = tuple(dp.Op(f"k{i}", "aten.relu", 1.0, phase="forward") for i in range(length))
    return dp.OpGraph(ops, tuple(dp.Edge(f"k{i}", f"k{i + 1}", 4) for i in range(length - 1)))


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def test_a_chain_of_20_000_ops_is_fused_at_once() -> None:
    graph = _chain(20_000)
    assert graph.topological_order
    # With a look at all members for each that joins, 10 s for 10,000 ops.
    assert _cpu_s(lambda: chains(graph)) < 5.0
    assert set(chains(graph).values()) == {"k0"}
    assert len(coarsen(_chain(2000), "fused").ops) == 1


def test_ops_of_a_module_that_name_a_device_and_a_type_stay_apart() -> None:
    # Whether gpu0 is of type A100 the machine says: an error said that no device may run both.
    ops = tuple(
        dp.Op(name, "aten.relu", 1.0, phase="forward", module="layer.1", devices=devices)
        for name, devices in (("a", ("gpu0",)), ("b", ("A100",)), ("c", None), ("d", ("gpu0",)))
    )
    graph = dp.OpGraph(ops, tuple(dp.Edge(a, b, 4) for a, b in ("ab", "bc", "cd")))
    coarse = coarsen(graph, "module")
    assert {op.origin or (op.id,): op.devices for op in coarse.ops}.keys() >= {("b",)}
    assert all(op.devices != () for op in coarse.ops)
    alike = dp.OpGraph((ops[0], *ops[2:]), (dp.Edge("a", "c", 4), dp.Edge("c", "d", 4)))
    assert [op.devices for op in coarsen(alike, "module").ops] == [("gpu0",)]
