"""Times and bytes that add up to more than can be counted are refused by name, and no others."""

import re
from dataclasses import replace

import pytest

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place

GRAPH = OpGraph((Op("x", "test", 1.0), Op("y", "test", 1.0)), (Edge("x", "y", 8),))
PAIR = Topology((Device("a"), Device("b")), (), (Link("a", "b", 1.0),))


def with_link(**fields: float) -> Topology:
    return replace(PAIR, links=(replace(PAIR.links[0], **fields),))


def with_dispatch(dispatch_s: float) -> Topology:
    return replace(PAIR, devices=tuple(replace(device, dispatch_s=dispatch_s) for device in PAIR.devices))


@pytest.mark.parametrize(
    ("graph", "topology", "told"),
    [
        (replace(GRAPH, ops=tuple(replace(op, time_s=1.7e308) for op in GRAPH.ops)), PAIR, "op 'x' takes 1.7e+308 s"),
        (GRAPH, with_link(bytes_per_s=5e-324), "one link inf s"),
        (replace(GRAPH, edges=(Edge("x", "y", 10**9),)), with_link(bytes_per_s=1e-300), "one link inf s"),
        (GRAPH, with_dispatch(1.7e308), "one device inf s"),
    ],
)
def test_what_no_float_can_hold_is_refused(graph: OpGraph, topology: Topology, told: str) -> None:
    with pytest.raises(InputError, match=r"ops, links and issues must take less than 1\.8e\+308 s in all; check"):
        place(graph, topology, Options(), time_limit_s=5.0)
    with pytest.raises(InputError, match=told.replace("+", r"\+")):
        place(graph, topology, Options(), time_limit_s=5.0)


@pytest.mark.parametrize("topology", [with_link(bytes_per_s=1e-300), with_link(latency_s=1e300), with_dispatch(1e300)])
def test_long_times_are_planned(topology: Topology) -> None:
    assert place(GRAPH, topology, Options(), time_limit_s=5.0, workers=1).plan.makespan_s >= 2.0


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (replace(GRAPH, ops=(replace(GRAPH.ops[0], state_bytes=10**25), GRAPH.ops[1])), "op 'x' takes 9.095e+12 TiB"),
        (replace(GRAPH, edges=(Edge("x", "y", 2**59),)), "the largest tensor 5.243e+05 TiB"),
    ],
)
def test_what_no_machine_word_can_count_is_refused(graph: OpGraph, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        place(graph, PAIR, Options(), time_limit_s=5.0)
