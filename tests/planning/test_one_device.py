"""The note that one device is best says why only where that is the reason."""

from dataclasses import replace

from dlplacer.core.constraints import Constraints
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.one_device import one_device_is_best
from dlplacer.planning.place import place

CHAIN = OpGraph((Op("x", "test", 1e-3), Op("y", "test", 1e-3)), (Edge("x", "y", 8),))
FORK = OpGraph(
    (Op("x", "test", 1e-3), Op("y", "test", 1e-3), Op("z", "test", 1e-3)), (Edge("x", "y", 8), Edge("x", "z", 8))
)
"""On two devices y and z run at once, after a transfer that takes longer than one of them."""


def said(process: str, graph: OpGraph = FORK) -> str:
    cores = tuple(Device(name, "core", None, None, None, {}, 2e-5, process, False) for name in "ab")
    plan = place(graph, Topology(cores, (), (Link("a", "b", 1e9, 2e-3),)), time_limit_s=5.0).plan
    return one_device_is_best(plan) or ""


def test_nothing_of_a_chain_runs_at_once() -> None:
    text = said("host", CHAIN)
    assert "one device is best" in text
    assert "its longest chain of ops takes as long by itself" in text
    assert "transfer" not in text


def test_ops_pinned_to_one_device_are_no_reason_for_it() -> None:
    assert said("host", replace(FORK, constraints=Constraints(dict.fromkeys("xyz", "b")))) == ""


def test_cores_of_one_process_wait_for_it() -> None:
    assert "its 3 ops take 1 ms on average, issuing one takes 20 us" in said("host")
