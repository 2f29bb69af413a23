"""Messages over real links: routes, sharing, rings, and collectives on machines that ship."""

import math
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.costs import closed_forms

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.load import load_topology
from dlplacer.machines.costs import collectives
from dlplacer.machines.costs.collectives import FREE, AlphaBeta
from dlplacer.machines.costs.links import MachineCosts, Wiring, rings

RATE, LATENCY_S = 1e9, 1e-6


def star(count: int, duplex: str = "full") -> Topology:
    """Devices on one switch that never blocks: every pair two hops apart."""
    devices = tuple(Device(f"d{n}") for n in range(count))
    links = tuple(Link(device.id, "switch", RATE, LATENCY_S / 2, duplex) for device in devices)
    return Topology(devices, (Router("switch"),), links, name="star")


def names(topology: Topology) -> tuple[str, ...]:
    return tuple(topology.device_index)


def costs_among(topology: Topology, devices: Sequence[str]) -> MachineCosts:
    return MachineCosts(Wiring(topology), (tuple(devices),))


def costs_on(topology: Topology) -> MachineCosts:
    return costs_among(topology, names(topology))


def same(line: AlphaBeta, other: AlphaBeta) -> bool:
    return math.isclose(line.latency_s, other.latency_s, rel_tol=1e-9) and math.isclose(
        line.s_per_byte, other.s_per_byte, rel_tol=1e-9
    )


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 13])
def test_on_a_switch_every_collective_is_its_closed_form(count: int) -> None:
    channel, machine = AlphaBeta(LATENCY_S, 1 / RATE), costs_on(star(count))
    for algorithm in collectives.ALGORITHMS:
        assert same(
            machine.line(algorithm), closed_forms.CLOSED_FORMS[algorithm.collective, algorithm.name](channel, count)
        ), algorithm


def test_a_message_takes_the_widest_route_through_routers_and_devices_relay_only_where_there_is_none() -> None:
    devices = tuple(Device(name) for name in "abcd")
    links = (Link("a", "r", 1e9, 1e-6), Link("r", "b", 1e9, 1e-6), Link("a", "c", 9e9), Link("c", "b", 9e9))
    wiring = Wiring(Topology(devices, (Router("r"),), (*links, Link("d", "c", 2e9))))
    assert wiring.route("a", "b") == ("a", "r", "b")
    assert wiring.route("a", "d") == ("a", "c", "d")
    assert wiring.channel("a", "b") == AlphaBeta(2e-6, 1e-9)
    assert wiring.channel("a", "a") == FREE


@pytest.mark.parametrize(("duplex", "factor"), [("full", 1), ("half", 2)])
def test_messages_share_link_directions(duplex: str, factor: int) -> None:
    topology = Topology((Device("a"), Device("b")), (), (Link("a", "b", RATE, 0.0, duplex),))
    both = Wiring(topology).round([("a", "b", 1.0), ("b", "a", 1.0)])
    assert both.s_per_byte == pytest.approx(factor / RATE)
    twice = Wiring(topology).round([("a", "b", 1.0), ("a", "b", 0.5)])
    assert twice.s_per_byte == pytest.approx(1.5 / RATE)


@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_the_widest_ring_is_the_best_of_all_orders(count: int, random: object) -> None:
    rates = {pair: random.choice([0.0, 1.0, 2.0, 3.0, 5.0]) for pair in pairs(count)}  # type: ignore[attr-defined]
    devices = tuple(Device(f"d{n}") for n in range(count))
    uplinks = tuple(Link(device.id, "switch", 0.5, 0.0, "half") for device in devices)
    links = tuple(Link(f"d{a}", f"d{b}", rate) for (a, b), rate in rates.items() if rate)
    wiring = Wiring(Topology(devices, (Router("switch"),), (*links, *uplinks)))
    found, rate = rings(wiring, [device.id for device in devices])[0]
    assert sorted(found) == sorted(device.id for device in devices)

    def ring_rate(order: tuple[str, ...]) -> float:
        hops = ((a, b, 1.0) for a, b in pairwise((*order, order[0])))
        return 1 / wiring.round(hops).s_per_byte

    first, *rest = (device.id for device in devices)
    assert rate == pytest.approx(max(ring_rate((first, *order)) for order in permutations(rest)))
    assert ring_rate(found) == pytest.approx(rate)


def pairs(count: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(count) for b in range(a + 1, count)]


def heaviest_load(topology: Topology) -> float:
    """The load that all rings of a machine together put on a link direction ÷ what it carries, where that is most."""
    wiring = Wiring(topology)
    loads: dict[tuple[str, str], float] = {}
    for order, rate in rings(wiring, names(topology)):
        for a, b in pairwise((*order, order[0])):
            for direction in wiring.directions(a, b):
                loads[direction] = loads.get(direction, 0.0) + rate
    return max(load / wiring.rate(direction) for direction, load in loads.items())


@pytest.mark.parametrize("name", ["dgx1-v100-4gpu", "dgx1-v100-8gpu", "dgx2-v100", "pcie-4gpu"])
def test_rings_side_by_side_never_overload_a_link(name: str) -> None:
    assert heaviest_load(load_topology(name)) <= 1 + 1e-9


# With unequal links a third ring may meet both rings before it on one link, the first and the second on others.
def test_the_cube_mesh_of_a_dgx1_carries_six_nvlinks_of_rings() -> None:
    # each V100 has six NVLinks of 20.75 GB/s: no set of rings can carry more, and these four carry that
    found = rings(Wiring(load_topology("dgx1-v100-8gpu")), [f"gpu{n}" for n in range(8)])
    assert sum(rate for _, rate in found) == pytest.approx(6 * 20.75e9)
    assert [rate for _, rate in found] == pytest.approx([41.5e9, 41.5e9, 20.75e9, 20.75e9])


def test_a_ring_is_never_slower_for_knowing_the_links() -> None:
    for name in ("dgx1-v100-8gpu", "dgx-a100", "pcie-4gpu", "mixed-2gpu"):
        machine = costs_on(load_topology(name))
        given_order = machine.rounds(collectives.ring_pass_rounds(machine.devices))
        assert machine.ring_pass.s_per_byte <= given_order.s_per_byte * (1 + 1e-9)
