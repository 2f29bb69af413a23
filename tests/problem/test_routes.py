"""Least-delay routes, against the enumeration of all simple paths."""

from itertools import product

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.options import CHOICES
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.routes import least_delay_routes, route_delay


def machine(devices: str, routers: str, links: list[Link]) -> Topology:
    return Topology(tuple(map(Device, devices)), tuple(map(Router, routers)), tuple(links))


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


@given(machines(), st.lists(st.integers(0, 64), min_size=1, max_size=6), st.sampled_from(CHOICES["delay"]))
def test_routes_are_the_fastest_of_all_simple_paths(topology: Topology, sizes: list[int], delay: str) -> None:
    tables = least_delay_routes(topology, sizes, delay)
    assert set(tables) == set(sizes)
    for size, table in tables.items():
        for pair in product(topology.device_index, repeat=2):
            paths = nx.all_simple_paths(topology.to_networkx(), *pair) if pair[0] != pair[1] else ()
            delays = [route_delay(topology, tuple(path), size, delay) for path in paths]
            assert (pair in table) == bool(delays)
            if delays:
                assert (table[pair][0], table[pair][-1]) == pair
                assert len(set(table[pair])) == len(table[pair])
                assert route_delay(topology, table[pair], size, delay) == min(delays)


def test_cut_through_pays_the_narrowest_link_once() -> None:
    # 24 bytes over r: 24 / min(8, 4) + 1 + 2 s = 9 s; store and forward 24 / 8 + 24 / 4 + 3 s = 12 s.
    topology = machine("ab", "r", [Link("a", "r", 8, 1), Link("r", "b", 4, 2)])
    assert route_delay(topology, ("a", "r", "b"), 24, "cut-through") == 9
    assert route_delay(topology, ("a", "r", "b"), 24) == 12


def test_a_relay_ends_a_cut_through_segment() -> None:
    topology = machine("abc", "", [Link("a", "b", 8), Link("b", "c", 8)])
    assert least_delay_routes(topology, [16], "cut-through")[16]["a", "c"] == ("a", "b", "c")
    assert route_delay(topology, ("a", "b", "c"), 16, "cut-through") == 4


def test_a_change_of_route_is_found_by_bisection() -> None:
    topology = machine("ab", "r", [Link("a", "r", 8, 3), Link("r", "b", 8, 3), Link("a", "b", 1)])
    tables = least_delay_routes(topology, range(1024))
    changes = [size for size in range(1, 1024) if tables[size] != tables[size - 1]]
    assert len(changes) == 1
    assert changes[0] in (8, 9)
    assert len({id(table) for table in tables.values()}) <= 2 + 10
