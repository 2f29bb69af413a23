"""Transfer requests and routes: what is sent as one, and which links it holds when."""

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.problem.route_table import Traffic, build_traffic

OPS = tuple(Op(name, "test", 1) for name in "abc")
GRAPH = OpGraph(OPS, (Edge("a", "b", 8, tensor="t"), Edge("a", "c", 8, tensor="t")))
PAIR = (Device("x"), Device("y"))
THROUGH = (Link("x", "r", 2, 1), Link("r", "y", 4, 1))


def traffic(*links: Link, **changes: str) -> Traffic:
    options = Options(**{"memory": "sum", **changes})
    return build_traffic(build_problem(GRAPH, Topology(PAIR, (Router("r"),), links), options))


def test_a_tensor_is_one_parcel_for_all_its_readers_or_one_for_each_edge() -> None:
    assert [request.readers for request in traffic(*THROUGH).requests] == [(1, 2)]
    each = traffic(*THROUGH, transfers="edge")
    assert [(request.readers, request.keepers) for request in each.requests] == [((1,), (1, 2)), ((2,), (1, 2))]


def test_cut_through_holds_all_links_together() -> None:
    # 8 bytes ÷ 2 per s + 1 + 1 s of latency; ticks are 1 s.
    (segment,) = traffic(*THROUGH).routes.quickest(0, 0, 1)
    assert segment.ticks == 6
    assert [hold[1:] for hold in segment.holds] == [(0, 6), (0, 6)]


def test_free_routing_lists_the_other_routes_and_shortest_only_equals() -> None:
    links = (*THROUGH, Link("x", "y", 4))
    free = traffic(*links).routes
    assert [sum(segment.ticks for segment in route) for route in free.between(0, 0, 1)] == [2, 6]
    assert free.complete
    assert len(traffic(*links, routing="shortest").routes.between(0, 0, 1)) == 1
    # By store-and-forward the router's way takes 8 s, as much as a link of 1 byte per s.
    equal = traffic(*THROUGH, Link("x", "y", 1), routing="shortest", delay="store-and-forward").routes
    assert len(equal.between(0, 0, 1)) == 2


@pytest.mark.parametrize(("rate", "same"), [(4, True), (2, False)])
def test_devices_can_be_swapped_where_their_links_agree(rate: float, same: bool) -> None:
    assert traffic(Link("x", "r", 4), Link("y", "r", rate)).routes.swappable(0, 1) is same
