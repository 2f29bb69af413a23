"""Least-delay routes, against the enumeration of all simple paths."""

from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.routes import least_delay_routes, route_delay, segments


def machine(devices: str, routers: str, links: list[Link]) -> Topology:
    return Topology(tuple(map(Device, devices)), tuple(map(Router, routers)), tuple(links))


def fastest(topology: Topology, source: str, target: str, size_bytes: int) -> Fraction | None:
    """The least delay over all simple paths; None if there is none."""
    paths = nx.all_simple_paths(topology.to_networkx(), source, target)
    return min((route_delay(topology, tuple(path), size_bytes) for path in paths), default=None)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Up to four devices and two routers; rates are powers of two, so that delays are exact in floats."""
    devices, routers = "abcd"[: draw(st.integers(1, 4))], "rs"[: draw(st.integers(0, 2))]
    names = devices + routers
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    rates, latencies = st.sampled_from([1, 2, 4, 8]), st.sampled_from([0, 1, 3])
    links = [
        Link(a, b, draw(rates), draw(latencies), count=draw(st.sampled_from([1, 2])))
        for a, b in pairs
        if draw(st.booleans())
    ]
    return machine(devices, routers, links)


@given(machines(), st.lists(st.integers(0, 64), min_size=1, max_size=8))
def test_routes_are_the_fastest_of_all_simple_paths(topology: Topology, sizes: list[int]) -> None:
    tables = least_delay_routes(topology, sizes)
    assert set(tables) == set(sizes)
    for size, table in tables.items():
        for source in topology.device_index:
            for target in topology.device_index:
                expected = None if source == target else fastest(topology, source, target, size)
                assert ((source, target) in table) == (expected is not None)
                if expected is not None:
                    route = table[source, target]
                    assert (route[0], route[-1]) == (source, target)
                    assert len(set(route)) == len(route)
                    assert route_delay(topology, route, size) == expected


@given(machines(), st.lists(st.integers(0, 64), min_size=1, max_size=4))
def test_cut_through_routes_are_the_fastest_of_all_simple_paths(topology: Topology, sizes: list[int]) -> None:
    for size, table in least_delay_routes(topology, sizes, "cut-through").items():
        for source in topology.device_index:
            for target in topology.device_index:
                paths = nx.all_simple_paths(topology.to_networkx(), source, target) if source != target else ()
                delays = [route_delay(topology, tuple(path), size, "cut-through") for path in paths]
                assert ((source, target) in table) == bool(delays)
                if delays:
                    assert route_delay(topology, table[source, target], size, "cut-through") == min(delays)
                    assert len(set(table[source, target])) == len(table[source, target])


def test_cut_through_pays_the_narrowest_link_once() -> None:
    # 24 bytes over r: 24 / min(8, 4) + 1 + 2 s = 9 s; store and forward 24 / 8 + 24 / 4 + 3 s = 12 s.
    topology = machine("ab", "r", [Link("a", "r", 8, 1), Link("r", "b", 4, 2)])
    assert route_delay(topology, ("a", "r", "b"), 24, "cut-through") == 9
    assert route_delay(topology, ("a", "r", "b"), 24) == 12


def test_a_relay_ends_a_cut_through_segment() -> None:
    topology = machine("abc", "", [Link("a", "b", 8), Link("b", "c", 8)])
    assert least_delay_routes(topology, [16], "cut-through")[16]["a", "c"] == ("a", "b", "c")
    assert route_delay(topology, ("a", "b", "c"), 16, "cut-through") == 4


def test_the_route_depends_on_the_bytes() -> None:
    # Over r: 2 × 3 s of latency, 1 s per 8 bytes. Direct: no latency, 1 s per byte. Equal at b = 6 + b / 4, b = 8.
    topology = machine("ab", "r", [Link("a", "r", 8, 3), Link("r", "b", 8, 3), Link("a", "b", 1)])
    tables = least_delay_routes(topology, [0, 7, 9, 100])
    assert [tables[size]["a", "b"] for size in (0, 7, 9, 100)] == [("a", "b")] * 2 + [("a", "r", "b")] * 2
    assert tables[9]["b", "a"] == ("b", "r", "a")


def test_devices_relay() -> None:
    # a → c directly takes 8 s for 8 bytes; over b 1 + 1.
    topology = machine("abc", "", [Link("a", "c", 1), Link("a", "b", 8), Link("b", "c", 8)])
    route = least_delay_routes(topology, [8])[8]["a", "c"]
    assert route == ("a", "b", "c")
    assert list(segments(topology, route)) == [("a", "b"), ("b", "c")]


def test_segments_pass_routers_and_end_at_devices() -> None:
    links = [Link(a, b, 1) for a, b in ("ar", "rs", "sb", "bt", "tc", "cd")]
    topology = machine("abcd", "rst", links)
    route = least_delay_routes(topology, [1])[1]["a", "d"]
    assert list(segments(topology, route)) == [("a", "r", "s", "b"), ("b", "t", "c"), ("c", "d")]


def test_bonded_links_count_together() -> None:
    topology = machine("abc", "", [Link("a", "b", 3), Link("a", "c", 2, count=4), Link("c", "b", 2, count=4)])
    assert least_delay_routes(topology, [24])[24]["a", "b"] == ("a", "c", "b")  # 3 + 3 s against 8 s
    assert route_delay(topology, ("a", "c"), 24) == 3


def test_delays_are_exact() -> None:
    # 1 byte ÷ 0.3 bytes/s + 0.1 s = 10/3 + 1/10, which no float holds.
    topology = machine("ab", "", [Link("a", "b", 0.3, 0.1)])
    assert route_delay(topology, ("a", "b"), 1) == Fraction(103, 30)
    assert route_delay(topology, ("a",), 1) == 0


def test_zero_bytes_still_pay_latency() -> None:
    topology = machine("ab", "r", [Link("a", "r", 1, 2), Link("r", "b", 1, 3)])
    assert route_delay(topology, least_delay_routes(topology, [0])[0]["a", "b"], 0) == 5


def test_pairs_without_a_way_are_absent() -> None:
    topology = machine("abc", "r", [Link("a", "b", 1), Link("c", "r", 1)])
    assert set(least_delay_routes(topology, [0, 5])[5]) == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize("sizes", [[], [3]])
def test_few_sizes(sizes: list[int]) -> None:
    assert list(least_delay_routes(machine("a", "", []), sizes)) == sizes


def test_sizes_between_equal_tables_are_not_searched() -> None:
    topology = machine("ab", "", [Link("a", "b", 1)])
    tables = least_delay_routes(topology, range(1000))
    # The tables of the two ends; all sizes between share the first.
    assert len(tables) == 1000
    assert len({id(table) for table in tables.values()}) == 2


def test_a_change_of_route_is_found_by_bisection() -> None:
    topology = machine("ab", "r", [Link("a", "r", 8, 3), Link("r", "b", 8, 3), Link("a", "b", 1)])
    tables = least_delay_routes(topology, range(1024))
    changes = [size for size in range(1, 1024) if tables[size] != tables[size - 1]]
    assert len(changes) == 1
    assert changes[0] in (8, 9)
    assert len({id(table) for table in tables.values()}) <= 2 + 10
