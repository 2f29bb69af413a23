"""What `place` and `compare` decide where ops wait for the processes that issue them."""

from dataclasses import replace

import pytest

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.files.load import load_topology
from dlplacer.planning.place import place

THREADS = load_topology("cpu-2core")
PROCESSES = Topology(
    tuple(Device(device.id, device.type) for device in THREADS.devices),
    (),
    tuple(replace(link, latency_s=2e-6) for link in THREADS.links),
)


def chains(count: int, length: int, time_s: float) -> OpGraph:
    """Independent chains of equal ops."""
    ops = tuple(Op(f"c{chain}.{place}", "test", time_s) for chain in range(count) for place in range(length))
    edges = tuple(
        Edge(f"c{chain}.{place}", f"c{chain}.{place + 1}", 256) for chain in range(count) for place in range(length - 1)
    )
    return OpGraph(ops, edges)


def recurrent(steps: int, time_s: float) -> OpGraph:
    """Gated cells with attention: fourteen short ops a step, up to six of them side by side."""
    ops, edges, before = [], [], None
    inner = {
        "r": (), "z": (), "n": (), "hr": (), "hz": (), "hn": (),
        "reset": ("r", "hr"), "update": ("z", "hz"), "gated": ("reset", "hn"), "new": ("n", "gated"),
        "score": ("new",), "soft": ("score",), "mix": ("soft", "update"), "state": ("mix", "new"),
    }  # fmt: skip
    for step in range(steps):
        for name, reads in inner.items():
            ops.append(Op(f"{name}{step}", "test", time_s))
            edges += [Edge(f"{read}{step}", f"{name}{step}", 4096) for read in reads]
            if before is not None and not reads:
                edges.append(Edge(f"state{before}", f"{name}{step}", 4096))
        before = step
    return OpGraph(tuple(ops), tuple(edges))


def devices_of(plan: object) -> int:
    """How many devices run an op that takes time."""
    return len({entry.device for entry in plan.ops if entry.end_s > entry.start_s})  # type: ignore[attr-defined]


# Turns of 14 us for ops of 5: nothing is gained on the second core, and the bound of turns, 5 us an op, proves it.
@pytest.mark.parametrize("graph", [recurrent(120, 5e-6), chains(1, 1008, 2.5e-6), chains(2, 500, 5e-6)])
def test_short_ops_stay_on_one_core_of_an_interpreter(graph: OpGraph) -> None:
    found = place(graph, THREADS, work_s=1.0)
    assert (devices_of(found.plan), found.status) == (1, "optimal")
    assert found.speedup == pytest.approx(1.0)


def test_chains_of_short_ops_are_worth_a_process_each() -> None:
    found = place(chains(2, 500, 5e-6), PROCESSES, time_limit_s=10.0)
    assert (devices_of(found.plan), found.status) == (2, "optimal")
    assert found.speedup == pytest.approx(2.0)


# 60 us each; side by side 28 us for two: turns hide behind the ops.
def test_ops_longer_than_all_turns_are_shared() -> None:
    found = place(chains(2, 100, 60e-6), THREADS, work_s=1.0)
    assert found.speedup == pytest.approx(2.0, abs=0.02)


def gpus(count: int, dispatch_s: float | None, process: str = "") -> Topology:
    """The first GPUs of the PCIe box."""
    box = load_topology("pcie-4gpu")
    return replace(
        box,
        devices=tuple(replace(d, dispatch_s=dispatch_s, process=process) for d in box.devices[:count]),
        links=tuple(link for link in box.links if link.source in {"gpu0", "gpu1", "gpu2", "gpu3"} - {
            d.id for d in box.devices[count:]} or link.target == "host"),
    )  # fmt: skip


def test_ops_are_moved_only_where_routes_lead_and_memory_suffices() -> None:
    # Reading 1 byte over the link to d0 takes 10 s; d1, which is nearer, has no room for b, and no link leads to d2.
    hosts = {"dispatch_s": 1e-6, "process": "host"}
    devices = (Device("d0", **hosts), Device("d1", memory_bytes=8, **hosts), Device("d2", **hosts))  # type: ignore[arg-type]
    topology = Topology(devices, (), (Link("d0", "d1", 0.1),))
    ops = (
        Op("a", "test", 1.0, weight_bytes=5, devices=("d1",)),
        Op("b", "test", 1.0, weight_bytes=4),
        Op("c", "test", 3.0),
    )
    plan = place(OpGraph(ops, (Edge("a", "b", 1),)), topology, gap=0.01, workers=1).plan
    assert not violations(plan)
    assert plan.placement["b"] == "d0"
    assert plan.makespan_s == pytest.approx(12.0, abs=1e-4)
    assert plan.lower_bound_s > 11.9
