"""Machines for benchmarks: 2 to 16 devices, all of one type or of several, with and without routers.

Rates are those of one NVLink (25 GB/s, `benchmarks.families.REFERENCE_BYTES_PER_S`) unless said otherwise; a network
between hosts has a quarter of it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from random import Random

from benchmarks.families import REFERENCE_BYTES_PER_S

from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.routes import least_delay_routes, route_delay

LATENCY_S = 0.5e-6
REFERENCE_TYPE = "fast"
SLOWDOWN: Mapping[str, float] = {REFERENCE_TYPE: 1.0, "slow": 2.0, "tiny": 4.0}
"""Device type → mean time of an op there ÷ its time on the reference machine."""


def linked(device_count: int, latency_s: float = LATENCY_S) -> Topology:
    """Devices, every two joined by a link."""
    devices = _devices(device_count)
    pairs = combinations(devices, 2)
    links = tuple(Link(a.id, b.id, REFERENCE_BYTES_PER_S, latency_s) for a, b in pairs)
    return Topology(devices, (), links, name=f"linked-{device_count}")


def ring(device_count: int) -> Topology:
    """Devices, each joined to two neighbours; others are reached through relays."""
    devices = _devices(device_count)
    pairs = {frozenset((at, (at + 1) % device_count)) for at in range(device_count)}
    links = tuple(_link(*(devices[at].id for at in sorted(pair))) for pair in sorted(pairs, key=sorted))
    return Topology(devices, (), links, name=f"ring-{device_count}")


def star(device_count: int) -> Topology:
    """Devices around one switch."""
    devices = _devices(device_count)
    links = tuple(_link(device.id, "switch") for device in devices)
    return Topology(devices, (Router("switch"),), links, name=f"star-{device_count}")


def tree(device_count: int, per_switch: int = 2) -> Topology:
    """Devices under switches under a host, as on PCIe."""
    return _two_levels("tree", device_count, per_switch, REFERENCE_BYTES_PER_S)


def cluster(device_count: int, per_host: int = 4) -> Topology:
    """Hosts of devices around a switch, joined by a network of a quarter of the rate."""
    return _two_levels("cluster", device_count, per_host, REFERENCE_BYTES_PER_S / 4)


def mixed(machine: Topology, *types: str) -> Topology:
    """The machine with its devices' types taken in turn from those given."""
    devices = tuple(replace(device, type=types[at % len(types)]) for at, device in enumerate(machine.devices))
    return replace(machine, devices=devices, name=f"{machine.name}-{'-'.join(types)}")


def limited(machine: Topology, graph: OpGraph, slack: float) -> Topology:
    """The machine with memory for `slack` × the graph's footprint in all, spread evenly, but for the largest op."""
    footprints = [op.footprint_bytes for op in graph.ops]
    share = max(math.ceil(slack * sum(footprints) / len(machine.devices)), max(footprints))
    devices = tuple(replace(device, memory_bytes=share) for device in machine.devices)
    return replace(machine, devices=devices, name=f"{machine.name}-memory{slack:g}")


MACHINES: Mapping[str, Callable[[], Topology]] = {
    "linked-2": lambda: linked(2),
    "star-4": lambda: star(4),
    "mixed-linked-4": lambda: mixed(linked(4), "fast", "slow"),
    "tree-8": lambda: tree(8),
    "linked-3": lambda: linked(3),
    "mixed-star-2": lambda: mixed(star(2), "fast", "slow"),
    "ring-4": lambda: ring(4),
    "cluster-16": lambda: cluster(16),
    "linked-8": lambda: linked(8),
    "mixed-tree-6": lambda: mixed(tree(6), "fast", "slow", "tiny"),
}
"""Name → machine of 2 to 16 devices."""


def timed_on(graph: OpGraph, machine: Topology, seed: int = 0, spread: float = 0.3) -> OpGraph:
    """The graph with times per device type where the machine has other types than the reference machine.

    An op takes its time × `SLOWDOWN` × exp(spread × N(0, 1)) on a type; on `REFERENCE_TYPE` its own.
    """
    if machine.device_types == (REFERENCE_TYPE,):
        return graph
    random = Random(f"{len(graph.ops)} {seed}")
    ops = []
    for op in graph.ops:
        times_s = {}
        for device_type, slowdown in SLOWDOWN.items():
            factor = 1.0 if device_type == REFERENCE_TYPE else slowdown * math.exp(spread * random.gauss(0, 1))
            times_s[device_type] = round((op.time_on(device_type) or 0.0) * factor, 9)
        ops.append(replace(op, time_s={name: times_s[name] for name in machine.device_types}))
    return replace(graph, ops=tuple(ops))


def mean_delay_s(machine: Topology, size_bytes: int) -> Fraction:
    """The delay of eq. 11 along the best route, averaged over all pairs of different devices."""
    table = least_delay_routes(machine, [size_bytes], "store-and-forward")[size_bytes]
    return sum((route_delay(machine, route, size_bytes) for route in table.values()), Fraction(0)) / len(table)


def compute_s(graph: OpGraph, machine: Topology) -> float:
    """Σ over the ops of their time, averaged over the devices."""
    types = [device.type for device in machine.devices]
    return sum((op.time_on(name) or 0.0) for op in graph.ops for name in types) / len(types)


def ccr_on(graph: OpGraph, machine: Topology) -> float:
    """Communication-to-computation ratio on a machine: Σ `mean_delay_s` over the edges ÷ `compute_s`."""
    mean_s = {size: mean_delay_s(machine, size) for size in {edge.bytes for edge in graph.edges}}
    return float(sum((mean_s[edge.bytes] for edge in graph.edges), Fraction(0))) / compute_s(graph, machine)


def _devices(count: int) -> tuple[Device, ...]:
    return tuple(Device(f"d{number}", type=REFERENCE_TYPE) for number in range(count))


def _link(source: str, target: str) -> Link:
    return Link(source, target, REFERENCE_BYTES_PER_S, LATENCY_S)


def _two_levels(name: str, device_count: int, per_switch: int, upper_bytes_per_s: float) -> Topology:
    devices = _devices(device_count)
    switches = tuple(Router(f"switch{number}") for number in range(math.ceil(device_count / per_switch)))
    links = [_link(device.id, switches[at // per_switch].id) for at, device in enumerate(devices)]
    links += [Link(switch.id, "root", upper_bytes_per_s, LATENCY_S) for switch in switches]
    return Topology(devices, (*switches, Router("root")), tuple(links), name=f"{name}-{device_count}")
