"""Where the nodes of a machine stand in its picture."""

from collections.abc import Mapping
from statistics import fmean

import networkx as nx

from dlplacer.core.topology import Topology


def machine_layout(topology: Topology) -> dict[str, tuple[float, float]]:
    """Node → (column, level): devices at level 0, a column apart; a router as far above as it is from a device.

    Devices of one router stand side by side, and the router over the middle of what it joins below.
    """
    joined: dict[str, list[str]] = {node.id: [] for node in topology.nodes}
    for link in topology.links:
        joined[link.source].append(link.target)
        joined[link.target].append(link.source)
    level = _levels(topology, joined)
    x = {name: float(place) for place, name in enumerate(_row(topology, joined, level))}
    routers = sorted((router.id for router in topology.routers), key=lambda name: level[name])
    for height in dict.fromkeys(level[name] for name in routers):
        here = [name for name in routers if level[name] == height]
        wanted = {
            name: fmean([x[other] for other in joined[name] if level[other] < height] or [len(topology.devices) - 1.0])
            for name in here
        }
        x |= _apart(wanted)
    return {node.id: (x[node.id], float(level[node.id])) for node in topology.nodes}


def _levels(topology: Topology, joined: Mapping[str, list[str]]) -> dict[str, int]:
    """Node → links to the nearest device; a router that joins no device is on top of all."""
    level = nx.multi_source_dijkstra_path_length(nx.Graph(joined), set(topology.device_index))
    top = 1 + max(level.values())
    return {node.id: level.get(node.id, top) for node in topology.nodes}


def _row(topology: Topology, joined: Mapping[str, list[str]], level: Mapping[str, int]) -> list[str]:
    """The devices from left to right: from the highest routers down, those of one router together."""
    row: dict[str, None] = {}
    waiting = sorted((router.id for router in reversed(topology.routers)), key=lambda name: level[name])
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        below = [other for other in joined[name] if level[other] < level[name]]
        row |= dict.fromkeys(other for other in below if not level[other])
        waiting += [other for other in reversed(below) if level[other]]
    return list(row | dict.fromkeys(device.id for device in topology.devices))


def _apart(wanted: Mapping[str, float]) -> dict[str, float]:
    """Columns at least one apart, in the order and around the middle of the wanted ones."""
    placed: dict[str, float] = {}
    last = float("-inf")
    for name in sorted(wanted, key=lambda name: wanted[name]):
        last = placed[name] = max(wanted[name], last + 1.0)
    shift = fmean(wanted.values()) - fmean(placed.values())
    return {name: column + shift for name, column in placed.items()}
