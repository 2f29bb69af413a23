"""Kernels take ticks of transfers from lines over the bytes: no schedule of theirs is shorter than its true ticks."""

from random import Random

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place


def _chain_that_changes_devices(seed: int) -> tuple[OpGraph, Topology, dict[str, str]]:
    """Its only plan is as long as its ops and transfers, so that every bound is tight."""
    random = Random(seed)
    count = random.randint(4, 7)
    ops = tuple(Op(f"op{i}", "op", random.randint(1, 1000) * 1.001e-6) for i in range(count))
    edges = tuple(Edge(f"op{i}", f"op{i + 1}", random.randint(1, 10**6)) for i in range(count - 1))
    link = Link("a", "b", random.uniform(1e9, 1e10), random.uniform(0, 1e-6))
    return (
        OpGraph(ops, edges),
        Topology((Device("a"), Device("b")), (), (link,)),
        {f"op{i}": "ab"[i % 2] for i in range(count)},
    )


@pytest.mark.parametrize("method", ["heft", "list", "ilp"])
def test_no_schedule_is_below_a_tight_bound(method: str) -> None:
    for seed in range(12):
        graph, topology, pins = _chain_that_changes_devices(seed)
        plan = place(graph, topology, Options(), method=method, time_limit_s=5, workers=1, pins=pins).plan
        assert plan.gap is not None
        assert plan.gap < 1e-5, seed
        assert method != "ilp" or plan.status == "optimal", seed
