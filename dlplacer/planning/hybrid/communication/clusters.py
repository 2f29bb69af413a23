"""Several equal machines joined by a network, as one topology."""

from dataclasses import replace

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Link, Router, Topology

NETWORK = "network"


def cluster(box: Topology, boxes: int, bytes_per_s: float, latency_s: float = 5e-6) -> Topology:
    """So many copies of a machine, each with one network card that its devices share, on one switch that never blocks.

    Device and router names get the number of their copy: ``3/gpu0``. Every device reaches the card of its box at the
    card's rate.

    Parameters
    ----------
    bytes_per_s
        Of a box's card, per direction.
    latency_s
        From device to device of different boxes.

    Raises
    ------
    InputError
        If there are no boxes, or the card's rate or latency cannot be.
    """
    if boxes < 1:
        raise InputError(f"a cluster of {boxes} machines; there must be at least 1")
    devices, routers, links = [], [Router(NETWORK)], []
    for number in range(boxes):
        names = {node.id: f"{number}/{node.id}" for node in box.nodes}
        card = f"{number}/{NETWORK}"
        devices += [replace(device, id=names[device.id]) for device in box.devices]
        routers += [Router(names[router.id]) for router in box.routers] + [Router(card)]
        links += [replace(link, source=names[link.source], target=names[link.target]) for link in box.links]
        links += [Link(names[device.id], card, bytes_per_s, latency_s / 4) for device in box.devices]
        links.append(Link(card, NETWORK, bytes_per_s, latency_s / 4))
    return Topology(tuple(devices), tuple(routers), tuple(links), name=f"{boxes} x {box.name}", source=box.source)
