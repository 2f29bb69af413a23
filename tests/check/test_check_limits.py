"""Where the rules end: shortest routes, tolerances, memory over time."""

import math
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from types import MappingProxyType

import networkx as nx
import pytest
from check import plans
from check.broken import ALIVE, CROSSING, SINGLE, approximately
from check.plans import changed, sent, with_op

from dlplacer.check import violations
from dlplacer.check.memory import live_bytes, used_bytes
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.topology import Link, Topology


def route_delay_s(topology: Topology, route: list[str], delay: str) -> float:
    """The delay of 20 bytes over some nodes, straight from the definitions."""
    spent_s, segment = 0.0, []
    for hop in pairwise(route):
        link = topology.link_between[hop]
        segment.append(link.total_bytes_per_s)
        spent_s += link.latency_s + (20 / link.total_bytes_per_s if delay == "store-and-forward" else 0)
        if delay == "cut-through" and hop[1] in topology.device_index:
            spent_s += 20 / min(segment)
            segment = []
    return spent_s


@pytest.mark.parametrize("delay", CHOICES["delay"])
@pytest.mark.parametrize("seed", range(5))
def test_the_shortest_routes_are_those_of_least_delay_among_all_paths(delay: str, seed: int) -> None:
    random = Random(seed)
    pairs = [pair for pair in combinations("abcrs", 2) if random.random() < 0.7 or pair == ("a", "b")]
    links = [Link(a, b, random.choice([1, 2, 4, 20]), random.choice([0, 1, 2])) for a, b in pairs]
    topology = plans.machine(*links)
    assumed = plans.options(delay=delay, routing="shortest")
    routes = list(nx.all_simple_paths(topology.to_networkx(), "a", "b"))
    least_s = min(route_delay_s(topology, route, delay) for route in routes)
    for route in routes:
        stops = [position for position, name in enumerate(route) if name in topology.device_index]
        times = [2 + route_delay_s(topology, route[: stop + 1], delay) for stop in stops]
        parts = [
            ("".join(route[begin : end + 1]), *when)
            for (begin, end), when in zip(pairwise(stops), pairwise(times), strict=True)
        ]
        scheduled = [("x", "a", 0.0, 2.0), ("y", "b", times[-1], times[-1] + 3)]
        plan = plans.plan(SINGLE.graph, topology, assumed, scheduled, [sent("t", "x", 20, *parts)])
        longer = times[-1] - 2 > least_s + 1e-6
        assert {violation.rule for violation in violations(plan)} == ({"shortest route"} if longer else set())


def test_rounding_hides_no_gap_to_speak_of() -> None:
    # 2 ns of 8 ns are 0.25.
    rounded = replace(plans.tiny(), lower_bound_s=6e-9, rounding_s=2e-9)
    assert violations(replace(rounded, status="feasible", gap=0.25)) == ()
    assert [violation.rule for violation in violations(rounded)] == ["gap"]


def test_times_are_compared_with_a_tolerance() -> None:
    # 1e-9 × (2 + 3 + 3 s of ops and transfer) = 8e-9 s
    assert CROSSING.tolerance_s == pytest.approx(8e-9)
    assert violations(changed(CROSSING, "y", start_s=5.0 - 4e-9)) == ()
    assert len(violations(changed(CROSSING, "y", start_s=5.0 - 2e-8))) == 2


def test_the_tolerance_depends_on_the_types_of_the_machine_alone() -> None:
    times = MappingProxyType({"gpu": 3.0, "abacus": 1e9})
    assert with_op(CROSSING, "y", time_s=times).tolerance_s == CROSSING.tolerance_s
    assert violations(with_op(CROSSING, "y", time_s=times)) == ()


def test_memory_over_time() -> None:
    # The numbers of `plans.alive`; what ends makes room just before.
    assert live_bytes(ALIVE, "a") == approximately((0, 10), (0, 35), (2, 30), (2, 37), (3, 30), (5, 10))
    assert live_bytes(ALIVE, "b") == approximately((0, 0), (2, 20), (5, 24), (8, 0))
    assert used_bytes(ALIVE) == {"a": 37, "b": 24}


def test_a_relay_holds_the_tensor_while_it_passes() -> None:
    relayed = plans.relayed(Options(step="joint"))
    # On a from the start of x to the end of the first segment; on b from 2 to 9 s, when it is at c; on c from 5 s, when
    # the last segment starts, to the end of y at 12 s, with its workspace of 5 from 9 s and gradient of 3 all the time.
    assert live_bytes(relayed, "a") == approximately((0, 4), (0, 24), (4, 4))
    assert live_bytes(relayed, "b") == approximately((0, 0), (2, 20), (9, 0))
    assert live_bytes(relayed, "c") == approximately((0, 3), (5, 23), (9, 28), (12, 3))


def test_rounded_times_do_not_stack_up_memory() -> None:
    # x ends at 0.1 + 0.2 = 0.30000000000000004 s, y starts at 0.3 s: they are not alive together.
    ops = (Op("x", "test", 0.1 + 0.2, workspace_bytes=60), Op("y", "test", 0.5, workspace_bytes=60))
    scheduled = [("x", "a", 0.0, 0.1 + 0.2), ("y", "a", 0.3, 0.8)]
    plan = plans.plan(OpGraph(ops), plans.machine(), Options(step="joint"), scheduled, memory={"a": 60})
    assert violations(plan) == ()


@pytest.mark.parametrize(
    ("at_s", "broken"), [(2.0, False), (math.nextafter(2.0, 3.0), False), (2.5, True), (4.0, False)]
)
def test_a_transfer_of_no_time_may_share_the_first_moment_of_another(at_s: float, broken: bool) -> None:
    # What starts together differs by rounding where the routes before it do.
    ops = (Op("x", "test", 2), Op("y", "test", 3), Op("z", "test", 3))
    graph = OpGraph(ops, (Edge("x", "y", 20, tensor="t"), Edge("x", "z", 0, tensor="none")))
    transfers = [sent("t", "x", 20, ("ab", 2.0, 4.0)), sent("none", "x", 0, ("ab", at_s, at_s))]
    order = [("x", "a", 0.0, 2.0), ("y", "b", 4.0, 7.0), ("z", "b", 7.0, 10.0)]
    plan = plans.plan(graph, plans.machine(Link("a", "b", 10)), plans.options(contention="link"), order, transfers)
    assert {violation.rule for violation in violations(plan)} == ({"link contention"} if broken else set())
