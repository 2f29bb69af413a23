"""A machine with its network as one more device: collectives run there one at a time, while all devices compute.

Nothing travels to that device: a collective reads and writes the memory of the devices themselves, so the edges to it
carry no bytes. Its links only join the graph; both together are slower than any route between two devices, so that no
tensor ever takes them as a short cut. What the plan charges for them is taken off the time of the collective.
"""

from dataclasses import replace

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.routes import least_delay_routes, route_line
from dlplacer.runtime.distributed.ranks import NETWORK

_SIZE_BYTES = 2**20
_SLOWER = 1.25
_LEAST_LATENCY_S = 1e-9


def with_network(topology: Topology, delay: str) -> Topology:
    """The machine with a pseudo-device `network`, joined to every device.

    Parameters
    ----------
    delay
        How delays are reckoned: an option of the plan.

    Raises
    ------
    InputError
        If a node has that name already, or two devices are not joined by any links.
    """
    if any(node.id == NETWORK for node in topology.nodes):
        raise InputError(f"the topology has a node {NETWORK!r} already; rename it: collectives run on one of that name")
    latency_s, s_per_byte = _slowest_route(topology, delay)
    links = (Link(device.id, NETWORK, 1 / s_per_byte, latency_s / 2) for device in topology.devices)
    return replace(
        topology,
        devices=(*topology.devices, Device(NETWORK, NETWORK)),
        links=(*topology.links, *links),
    )


def ingress_s(topology: Topology) -> float:
    """Seconds that the plan charges for the route from a device to the network and back."""
    return 2 * max(link.latency_s for link in topology.links if link.target == NETWORK)


def _slowest_route(topology: Topology, delay: str) -> tuple[float, float]:
    """More latency than any route between two devices has, and the most seconds per byte of any."""
    names = [device.id for device in topology.devices]
    if len(names) == 1:
        return 0.0, 1e-12  # there is no route that could be cut short
    table = least_delay_routes(topology, [_SIZE_BYTES], delay)[_SIZE_BYTES]
    missing = [(a, b) for a in names for b in names if a != b and (a, b) not in table]
    if missing:
        raise InputError(
            f"devices {missing[0][0]!r} and {missing[0][1]!r} are not joined by any links; replicas need a topology "
            "whose devices are all joined"
        )
    lines = [route_line(topology, route, delay) for route in table.values()]
    latency_s, s_per_byte = (float(max(values)) for values in zip(*((late, rate) for rate, late in lines), strict=True))
    return _SLOWER * latency_s + _LEAST_LATENCY_S, s_per_byte
